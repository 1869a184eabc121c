"""What the model sees of a picture in real size, and prompts: against transformers' processor and plain counts."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assets import asset
from file_patches import make_patches
from parity.conversations import conversations, picture
from parity.subject import subject
from phi4_multimodal.oracle import plain_pixels, transformers
from sightline.config import MediaConfig
from sightline.engine.remote.check_item import check_item
from sightline.errors import ConfigError, MediaError, PromptError
from sightline.media.item import item_of
from sightline.media.source import load_image
from sightline.models.families.phi4_multimodal.processor import CropProcessor, read_processor
from sightline.models.families.phi4_multimodal.tower import crop_positions
from sightline.models.family import ProcessorFiles
from sightline.models.fields import Fields
from sightline.models.registry import read_model_spec, read_processor_spec
from sightline.prompt.messages import normalise_messages, with_text_content
from sightline.spec import PatchSpec
from sightline.types import ImageHeader

CROP, SIDE = 448, 32
HALF = (0.5, 0.5, 0.5)
PROCESSOR = CropProcessor(PatchSpec(CROP**2, 36 * CROP**2, 14, 1, 1, HALF, HALF), None, CROP)
sides = st.one_of(st.integers(1, 2000), st.integers(1, 20_000))


def their_crops(height: int, width: int) -> tuple[int, int]:
    """Down and across by transformers' own search, with the candidates in the order of its set."""
    across, down = -(-width // CROP), -(-height // CROP)
    if across * down <= 36:
        return down, across
    candidates = {(i, j) for n in range(1, 37) for i in range(1, n + 1) for j in range(1, n + 1) if 1 <= i * j <= 36}
    search = transformers.Phi4MultimodalImageProcessor.find_closest_aspect_ratio
    across, down = search(None, width / height, sorted(candidates, key=lambda x: x[0] * x[1]), width, height, CROP)
    return down, across


@settings(max_examples=200, deadline=None)
@given(sides, sides)
def test_crops_and_rows_follow_from_the_header(height: int, width: int) -> None:
    """Red if the canvas, the padding, which patches count, or the number of rows differ; or if a crop is all padding, for which
    transformers' attention has no value."""
    down, across = their_crops(height, width)
    high, wide = down * CROP, across * CROP
    scaled = (int(height * (wide / width)), wide) if wide / width < high / height else (high, int(width * (high / height)))
    if min(scaled) < 10:
        with pytest.raises(MediaError, match="too narrow"):
            PROCESSOR.layout(ImageHeader("PNG", width, height, 1))
        return
    layout = PROCESSOR.layout(ImageHeader("PNG", width, height, 1))
    whole, *parts = layout.views
    assert (whole.canvas, whole.resized, whole.shown) == ((high, wide), scaled, (CROP, CROP))
    seen = np.zeros((down * SIDE, across * SIDE), np.int64)
    seen[: down * SIDE - (high - scaled[0]) // 14, : across * SIDE - (wide - scaled[1]) // 14] = 1
    covered = np.zeros_like(seen)
    for view in parts:
        top, left = (-offset // 14 for offset in view.offset)
        covered[top : top + view.canvas[0] // 14, left : left + view.canvas[1] // 14] += 1
    assert (covered == seen).all()
    assert seen[::SIDE, ::SIDE].all()  # the first patch of every crop
    cells = seen[::2, ::2]
    assert layout.rows == cells.sum() + cells[:, 0].sum() + 1 + 16 * 17
    assert sum(t * h * w for t, h, w in layout.grids) == seen.sum() + SIDE**2 <= PROCESSOR.most_patches_per_item()


@pytest.mark.parametrize("size", [(448, 448), (300, 200), (700, 460), (449, 1000)])
def test_pixels_are_those_of_transformers(size: tuple[int, int]) -> None:
    """Its resize is torch's, whose pixels are Pillow's but for one level here and there. Red if the picture is resized by
    another filter, laid elsewhere, on another colour, or the whole is made of anything but the padded canvas."""
    source = picture(*size, 5)
    theirs = transformers.Phi4MultimodalImageProcessor()(source, return_tensors="pt")
    plain = plain_pixels(source, CROP)
    level = 2 / 255
    assert plain.num_tokens == theirs["num_img_tokens"][0]
    assert torch.equal(plain.mask, theirs["image_attention_mask"][0])
    assert plain.image_sizes.tolist() == theirs["image_sizes"][0].tolist()
    torch.testing.assert_close(plain.pixel_values, theirs["image_pixel_values"][0], atol=2.01 * level, rtol=0)
    assert (plain.pixel_values - theirs["image_pixel_values"][0]).abs().mean() < 0.1 * level


@pytest.mark.parametrize("size", [(448, 448), (700, 460)])
def test_patches_are_those_of_the_plain_way(size: tuple[int, int]) -> None:
    """Red if a view is cut elsewhere than the crops are, or rounded on the way."""
    source = picture(*size, 6)
    item = item_of(load_image(source, MediaConfig()), PROCESSOR)
    plain = plain_pixels(source, CROP)
    cut = plain.pixel_values.unflatten(3, (-1, 14)).unflatten(2, (-1, 14)).permute(0, 2, 4, 1, 3, 5).flatten(3)
    across = plain.image_sizes[1] // CROP
    expected = [cut[0].flatten(0, 1)]
    for view, (_, high, wide) in zip(item.views[1:], item.grids[1:], strict=True):
        for y in range(-view.offset[0], -view.offset[0] + view.canvas[0], view.tile[0]):
            for x in range(-view.offset[1], -view.offset[1] + view.canvas[1], view.tile[1]):
                crop = 1 + y // CROP * across + x // CROP
                expected.append(cut[crop, :high, :wide].flatten(0, 1))
    found = make_patches(item, PROCESSOR.image, torch.device("cpu"), torch.float32)
    torch.testing.assert_close(found, torch.cat(expected), atol=1e-5, rtol=0)


def test_positions_of_padded_crops_are_those_of_transformers() -> None:
    """Its comparisons of fractions, in float32, for all numbers of patches there are."""
    bounds = torch.arange(1 / SIDE, 1.0, 1 / SIDE)
    for count in range(1, SIDE + 1):
        fractions = (torch.arange(count, dtype=torch.float32) * (1.0 / torch.tensor(count))).clamp(max=1 - 1e-6)
        expected = torch.bucketize(fractions, bounds, right=True)
        assert crop_positions(1, count, SIDE).tolist() == expected.tolist()
        assert crop_positions(count, 1, SIDE).tolist() == (SIDE * expected).tolist()


def test_fewer_pixels_are_fewer_crops() -> None:
    """Red if --max-pixels, or a request's max_pixels, changes nothing."""
    fewer = replace(PROCESSOR, image=replace(PROCESSOR.image, max_pixels=5 * CROP**2))
    assert PROCESSOR.layout(ImageHeader("PNG", 1300, 1300, 1)).views[0].canvas == (3 * CROP, 3 * CROP)
    assert fewer.layout(ImageHeader("PNG", 1300, 1300, 1)).views[0].canvas == (2 * CROP, 2 * CROP)


def test_docs_say_how_many_embeddings_pictures_have() -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    said = re.search(r"(\d+) x (\d+) pixels are ([\d,]+) embeddings, (\d+) x (\d+) are\s+([\d,]+)", page)
    assert said is not None
    numbers = [int(number.replace(",", "")) for number in said.groups()]
    for width, height, rows in (numbers[:3], numbers[3:]):
        assert PROCESSOR.layout(ImageHeader("PNG", width, height, 1)).rows == rows


def test_views_that_are_no_whole_are_refused() -> None:
    """As another server may send them. Red if rows are taken that no view makes."""
    item = item_of(load_image(picture(700, 460, 1), MediaConfig()), PROCESSOR)
    assert len(item.views) == 3 and len(PROCESSOR.arrange(item)) == item.rows
    missing = replace(item, views=item.views[::2], grids=item.grids[::2])
    beyond = replace(item, views=(*item.views[:2], replace(item.views[2], offset=(448, 0))))
    short = replace(item, views=(*item.views[:2], replace(item.views[2], offset=(-448, -448))))
    far = replace(item, views=(*item.views[:2], replace(item.views[2], offset=(-(1 << 40), -(1 << 40)))))  # petabytes of places
    for wrong in (missing, beyond, short, far):
        with pytest.raises(MediaError, match="do not fit together"):
            PROCESSOR.arrange(wrong)


def test_another_server_may_encode_it(phi4: Path) -> None:
    """What it is sent is checked against the model's limits. Red if a layout of this family is refused, or one is taken whose
    picture is resized to more than the model ever sees."""
    processor = subject(phi4).llm.processor
    for size in ((300, 180), (56, 56), (33, 620), (900, 700)):
        item = item_of(load_image(picture(*size, 1), MediaConfig()), processor)
        check_item(item, processor)
    whole, *parts = item.views
    huge = replace(parts[0], resized=(50_000, 50_000))
    for wrong in ((whole, huge), (replace(whole, reduced=(56, 112)), *parts), (replace(whole, colour=(0, 0, 256)), *parts)):
        with pytest.raises(MediaError, match=r"do not fit each other|a view of more than"):
            check_item(replace(item, views=wrong, grids=item.grids[: len(wrong)]), processor)


# ---- Prompts


def published_template(messages: list[dict[str, str]]) -> str:
    """<|role|> content <|end|> for each, then <|assistant|>."""
    return "".join(f"<|{m['role']}|>{m['content']}<|end|>" for m in messages) + "<|assistant|>"


@pytest.mark.parametrize("name", conversations())
def test_prompts_are_as_published(phi4: Path, name: str) -> None:
    """Content is text with <|image_1|>, <|image_2|>, … through the whole conversation, nothing between parts. Ids have the
    image's token as often as it has rows, wherever the template put it."""
    ours = subject(phi4).llm
    messages, count = [], 0
    for message in conversations()[name]:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        texts = []
        for part in parts:
            count += part["type"] == "image"
            texts.append(part["text"] if part["type"] == "text" else f"<|image_{count}|>")
        messages.append({"role": message["role"], "content": "".join(texts)})
    rendered, media = ours.prompts.render(conversations()[name])
    assert rendered == published_template(messages) and len(media) == count
    request = ours.prompts.chat(conversations()[name])
    pieces, image = [], ours.spec.tokens.image
    text = rendered
    for number, item in enumerate(request.items, start=1):
        before, text = text.split(f"<|image_{number}|>")
        pieces += [*ours.tokenizer.encode(before), *[image] * item.rows]
    assert request.token_ids.tolist() == [*pieces, *ours.tokenizer.encode(text)]
    assert (request.positions == np.arange(len(request))).all() and request.position_delta == 0
    assert request.adapter == (0 if count else -1)


def test_a_raw_prompt_may_have_either_placeholder(phi4: Path) -> None:
    prompts, image = subject(phi4).llm.prompts, ("image", picture(60, 60, 1))
    numbered, pad = (prompts.text(f"a{place}b", [image]) for place in ("<|image_3|>", "<|endoftext10|>"))
    assert numbered.token_ids.tolist() == pad.token_ids.tolist()


def test_tools_stand_in_a_system_message(phi4: Path) -> None:
    prompts = subject(phi4).llm.prompts
    rendered, _ = prompts.render([{"role": "system", "content": "Be brief.", "tools": "[]"}, {"role": "user", "content": "Hi"}])
    assert rendered == "<|system|>Be brief.<|tool|>[]<|/tool|><|end|><|user|>Hi<|end|><|assistant|>"
    with pytest.raises(PromptError, match="no place for tools"):
        prompts.render([{"role": "user", "content": "Hi"}], tools=[{"type": "function", "function": {"name": "f"}}])


@pytest.mark.parametrize("kind", ["audio", "audio_url", "input_audio"])
def test_audio_is_refused_by_name(phi4: Path, kind: str) -> None:
    content = [{"type": "text", "text": "What is said?"}, {"type": kind, kind: {"data": "", "url": "data:audio/wav;base64,"}}]
    with pytest.raises(PromptError, match=rf"messages\[0\]\.content\[1\] has type '{kind}', and audio is not supported"):
        subject(phi4).llm.prompts.chat([{"role": "user", "content": content}])


def test_videos_are_refused_by_the_models_name(phi4: Path) -> None:
    with pytest.raises(PromptError, match=r"The model .* takes no videos"):
        subject(phi4).llm.prompts.chat([{"role": "user", "content": [{"type": "video", "video": b"RIFF"}]}])


def test_text_content_is_for_families_that_say_so() -> None:
    """Red if templates that take parts are given text."""
    messages, _ = normalise_messages(
        [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image", "image": b""}]}]
    )
    assert with_text_content(messages, lambda kind, number: None) is messages
    assert with_text_content(messages, lambda kind, number: f"[{kind} {number}]") == [{"role": "user", "content": "a[image 1]"}]


# ---- Files


def test_other_means_are_refused(phi4: Path) -> None:
    """The tower relies on what white becomes."""
    files = ProcessorFiles(
        Fields({"image_mean": [0.4, 0.5, 0.5]}, "preprocessor_config.json"), Fields({}, "v"), Fields({}, "c")
    )
    with pytest.raises(ConfigError, match="'image_mean' must be"):
        read_processor(files, read_model_spec(phi4))


def test_published_files_are_read() -> None:
    """The config as far as it is known: rebuilt from public code, see its folder."""
    folder = asset("configs/Phi-4-multimodal-instruct")
    spec = read_model_spec(folder)
    assert read_processor_spec(folder, spec, MediaConfig()) == PROCESSOR
    assert (spec.text.num_layers, spec.text.hidden_size, spec.text.attention.num_heads) == (32, 3072, 24)
    assert spec.text.adapters[0].scale == 2.0 and spec.text.long_rope_from == 4096 and spec.tokens.image == 200010
    rope = spec.text.attention.rope
    assert rope.rotary_dim == 96 and rope.long is not None and rope.long.attention_factor == pytest.approx(1.190238)
