"""From messages to a complete request, through real headers of small images."""

import dataclasses
import io
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from prompt.builders import FAMILIES, VIDEO, image_item, own_template, prompt_builder, video_item
from sightline.errors import PromptError, PromptTooLongError
from sightline.media.source import load_image
from sightline.prompt.items import make_item
from sightline.prompt.template import ChatTemplate
from sightline.spec import PatchTowerSpec
from sightline.timing import StageClock
from sightline.types import Request


def png(height: int, width: int, colour: int = 0) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (colour, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


class Bench:
    """A builder, where its files are, and a way to read what it made."""

    def __init__(self, folder: Path, family: str, max_model_len: int = 4096) -> None:
        self.folder, self.family = folder, family
        self.builder = prompt_builder(folder, family, max_model_len)
        self.chat, self.text, self.assemble = self.builder.chat, self.builder.text, self.builder.assemble
        self.spec, self.tokenizer = self.builder.spec, self.builder.tokenizer

    def read(self, request: Request) -> str:
        return self.tokenizer.decode(request.token_ids.tolist(), skip_special_tokens=False)


@pytest.fixture(params=FAMILIES)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    return Bench(tmp_path, request.param)


def question(*sources: Any, text: str = "What?") -> list[dict[str, Any]]:
    return [
        {
            "role": "user",
            "content": [*({"type": "image", "image": source} for source in sources), {"type": "text", "text": text}],
        }
    ]


def test_a_chat_with_images(bench: Bench) -> None:
    """Red if items, spans, ids and positions of one request stop belonging together."""
    request = bench.chat(question(png(56, 84), png(84, 28)))
    assert [item.grid for item in request.items] == [(1, 4, 6), (1, 6, 2)]
    assert [(span.item, span.count, span.row) for span in request.spans] == [(0, 6, 0), (1, 3, 0)]
    image = bench.spec.tokens.image
    assert np.flatnonzero(request.token_ids == image).tolist() == [
        place for span in request.spans for place in range(span.start, span.start + span.count)
    ]
    assert request.positions.shape == (3, len(request))
    assert request.token_ids.dtype == request.positions.dtype == np.int32
    assert request.positions.max() + 1 == len(request) + request.position_delta
    assert request.position_delta == (3 - 6) + (3 - 3)
    pads = bench.tokenizer.token_of(image)
    once = bench.read(request).replace(pads * 6, pads).replace(pads * 3, pads)
    assert once == ChatTemplate(own_template(bench.family)).render(
        [{"role": "user", "content": [{"type": "image"}, {"type": "image"}, {"type": "text", "text": "What?"}]}]
    )


def test_equals_transformers_chat(bench: Bench) -> None:
    """Red if a whole chat gives other ids or positions than apply_chat_template, processor and get_rope_index together."""
    from prompt.oracle import positions, processor

    pictures = [Image.new("RGB", (84, 56)), Image.new("RGB", (28, 140))]
    request = bench.chat([*question(pictures[0]), {"role": "assistant", "content": "A."}, *question(pictures[1], text="é?")])
    oracle = processor(bench.family, bench.folder)
    parts = [[{"type": "image"}, {"type": "text", "text": text}] for text in ("What?", "é?")]
    prompt = oracle.apply_chat_template(
        [{"role": "user", "content": parts[0]}, {"role": "assistant", "content": "A."}, {"role": "user", "content": parts[1]}],
        chat_template=own_template(bench.family),
        add_generation_prompt=True,
        tokenize=False,
    )
    inputs = oracle(text=[prompt], images=pictures, return_tensors="pt")
    assert request.token_ids.tolist() == inputs["input_ids"][0].tolist()
    expected, delta = positions(bench.family, inputs)
    assert (request.positions.tolist(), request.position_delta) == (expected.tolist(), delta)


def test_an_image_of_more_patches_than_the_tower_has_positions(bench: Bench) -> None:
    """Red if a grid that is too long reaches the tower: on a GPU such an index ends the process."""
    assert isinstance(bench.spec.vision, PatchTowerSpec)
    rows, columns = bench.chat(question(png(400, 80))).items[0].grids[0][1:]
    for limit, fits in ((max(rows, columns), True), (max(rows, columns) - 1, False)):
        spec = dataclasses.replace(bench.spec, vision=dataclasses.replace(bench.spec.vision, max_grid_side=limit))
        builder = dataclasses.replace(bench.builder, spec=spec)
        with (
            nullcontext() if fits else pytest.raises(PromptError, match=rf"{limit + 1} patches along a side; .* for {limit}\.")
        ):
            builder.chat(question(png(400, 80)))


def test_same_image_twice(bench: Bench) -> None:
    """Red if two uses of an image share a span, or stop sharing a key."""
    picture = png(56, 56)
    request = bench.chat(question(picture, picture, png(56, 56, colour=9)))
    keys = [item.key for item in request.items]
    assert keys[0] == keys[1] != keys[2]
    assert len({span.start for span in request.spans}) == 3


def test_text_prompt_with_placeholders(bench: Bench) -> None:
    """Red if a raw prompt is put through a template, or its media are not taken in order."""
    spec = bench.spec
    pad = bench.tokenizer.token_of(spec.tokens.image)
    request = bench.text(f"a{pad}b{pad}", [("image", png(28, 56)), ("image", png(56, 56))])
    image = spec.tokens.image
    assert request.token_ids.tolist() == [97, image, image, 98, image, image, image, image]
    with pytest.raises(PromptError, match="for images: 1, but images were given: 0"):
        bench.text(pad)
    with pytest.raises(PromptError, match="kind 'audio'"):
        bench.text("x", [("audio", b"")])
    with pytest.raises(PromptError, match="empty"):
        bench.text("")


def test_template_options(tmp_path: Path) -> None:
    """Red if chat_template_kwargs or tools do not reach the template."""
    bench = Bench(tmp_path, "qwen3-vl")
    tools = [{"type": "function", "function": {"name": "look"}}]
    request = bench.chat(
        question(png(28, 28)), tools=tools, chat_template_kwargs={"add_vision_id": True, "add_generation_prompt": False}
    )
    assert "Picture 1: <|vision_start|>" in bench.read(request)
    assert '{"type": "function", "function": {"name": "look"}}' in bench.read(request)
    assert bench.read(request).endswith("What?<|im_end|>\n")


def test_a_template_that_drops_an_image(tmp_path: Path) -> None:
    """Red if an image that the template does not write (Qwen3's system turn) vanishes without a word."""
    bench = Bench(tmp_path, "qwen3-vl")
    with pytest.raises(PromptError, match="for images: 0, but images were given: 1"):
        bench.chat([{"role": "system", "content": [{"type": "image", "image": png(28, 28)}]}, {"role": "user", "content": "x"}])


@pytest.mark.parametrize("place", ["text", "tools", "chat_template_kwargs"])
def test_placeholders_from_outside(bench: Bench, place: str) -> None:
    """Red if a placeholder token written by a user passes, from wherever it comes."""
    tokens = bench.spec.tokens
    for token in (tokens.image, tokens.video):
        name = bench.tokenizer.token_of(token)
        options: dict[str, Any] = {
            "tools": {"tools": [{"x": name}]},
            "chat_template_kwargs": {"chat_template_kwargs": {"x": [name]}},
        }.get(place, {})
        with pytest.raises(PromptError) as caught:
            bench.chat([{"role": "user", "content": name if place == "text" else "x"}], **options)
        assert name in str(caught.value)


def test_reserved_template_options(bench: Bench) -> None:
    """Red if chat_template_kwargs can replace the checked messages."""
    with pytest.raises(PromptError, match=r"^chat_template_kwargs cannot set 'messages'"):
        bench.chat([{"role": "user", "content": "x"}], chat_template_kwargs={"messages": []})
    with pytest.raises(PromptError, match=r"^chat_template_kwargs cannot set 'tools'"):
        bench.builder.render([{"role": "user", "content": "x"}], None, {"tools": []})


def test_token_ids(bench: Bench) -> None:
    """Red if ids that no model has or that stand for a medium pass, or if good ids get other positions than text does."""
    request = bench.builder.token_ids([97, 98, 99])
    same = bench.text("abc")
    assert request.token_ids.tolist() == same.token_ids.tolist() and request.token_ids.dtype == np.int32
    assert (request.positions.tolist(), request.position_delta) == (same.positions.tolist(), same.position_delta)
    for ids in ([97, 512], [-1], [2**40]):
        with pytest.raises(PromptError, match=f"token {ids[-1]}, but ids must be between 0 and 511"):
            bench.builder.token_ids(ids)
    with pytest.raises(PromptError, match=f"token {bench.spec.tokens.video}, which stands for an image or video"):
        bench.builder.token_ids([97, bench.spec.tokens.video])
    with pytest.raises(PromptError, match="empty"):
        bench.builder.token_ids([])


def test_media_loaded_by_the_caller_make_the_same_request(bench: Bench) -> None:
    """As the server does it, step by step. Red if the steps and the whole come apart."""
    messages = question(png(56, 84), png(84, 28))
    clock, builder = StageClock(), bench.builder
    request = bench.chat(messages, clock=clock)
    prompt, media = builder.render(messages)
    items = [make_item(load_image(medium.source, builder.limits), builder.processor) for medium in media]
    steps = builder.assemble(prompt, items)
    assert steps.token_ids.tolist() == request.token_ids.tolist() and steps.positions.tolist() == request.positions.tolist()
    assert (steps.items, steps.spans) == (request.items, request.spans)
    assert {"header", "prompt"} <= set(clock.seconds)


def test_too_long(tmp_path: Path) -> None:
    """Red if a prompt over the limit passes, of whatever kind, or one that leaves room for one token of an answer does not."""
    bench = Bench(tmp_path, "qwen3-vl", max_model_len=21)
    assert len(bench.text("x" * 20)) == len(bench.builder.token_ids([120] * 20)) == 20
    with pytest.raises(PromptTooLongError, match="21 tokens, more than the limit of 20"):
        bench.text("x" * 21)
    with pytest.raises(PromptTooLongError, match="21 tokens, more than the limit of 20"):
        bench.builder.token_ids([120] * 21)
    with pytest.raises(PromptTooLongError, match="tokens, more than the limit of 20"):
        bench.chat([{"role": "user", "content": "x" * 20}])


def test_far_too_long(tmp_path: Path) -> None:
    """Red if a long prompt is encoded as a whole before it is refused, or if one that fits is refused for its characters."""
    bench = Bench(tmp_path, "qwen3-vl", max_model_len=21)
    with pytest.raises(PromptTooLongError, match="about 400 tokens, more than the limit of 20"):
        bench.text("x" * 400)
    assert len(bench.text("<|object_ref_start|>" * 20)) == 20


def test_positions_too_far(tmp_path: Path) -> None:
    """Red if a video whose clock runs past the limit passes because its tokens are few."""
    video = video_item(6, 1, 1, fps=1.0)  # 6 rows; 4 positions per group: 0, 4, …, 20
    assert len(Bench(tmp_path, "qwen2.5-vl", max_model_len=22).assemble("<|video_pad|>", [video])) == 6
    with pytest.raises(PromptTooLongError, match="positions reach 21, more than the limit of 20"):
        Bench(tmp_path, "qwen2.5-vl", max_model_len=21).assemble("<|video_pad|>", [video])


def test_video_and_image_together(bench: Bench) -> None:
    """Red if the number of spans of a video does not follow the family's rule, or rows go missing in a mix."""
    image = bench.tokenizer.token_of(bench.spec.tokens.image)
    prompt = f"{image}a{VIDEO[bench.family]}b{image}"
    items = [image_item(1, 2), video_item(3, 2, 2, fps=2.0), image_item(2, 2)]
    request = bench.assemble(prompt, items)
    per_group = bench.family != "qwen2.5-vl"
    assert [span.item for span in request.spans] == ([0, 1, 1, 1, 2] if per_group else [0, 1, 2])
    assert sum(span.count for span in request.spans) == sum(item.rows for item in items)
    assert all(
        before.start + before.count <= after.start for before, after in zip(request.spans, request.spans[1:], strict=False)
    )


def test_torch_is_not_loaded() -> None:
    """Red if building a prompt starts to import torch or transformers, which the API process must not load."""
    code = "import sys, sightline.prompt.builder; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_model_without_videos_says_so(bench: Bench) -> None:
    """Red if a video is fetched for a model that takes none, or the sentence does not name the model."""
    builder = dataclasses.replace(bench.builder, processor=dataclasses.replace(bench.builder.processor, video=None))
    chat = [{"role": "user", "content": [{"type": "video", "video": "/nowhere.mp4"}, {"type": "text", "text": "What?"}]}]
    with pytest.raises(PromptError, match=r"^The model a model takes no videos, and the prompt has 1\.$"):
        builder.chat(chat)
    assert builder.chat(question(png(56, 84))).token_ids.tolist() == bench.chat(question(png(56, 84))).token_ids.tolist()
