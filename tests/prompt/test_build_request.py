"""From messages to a complete request, through real headers of small images."""

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from prompt.builders import FAMILIES, STYLES, byte_tokenizer, image_item, model_spec, processor_spec, video_item
from sightline.config import MediaConfig
from sightline.errors import PromptError
from sightline.prompt.request import assemble, build_request, build_request_from_text
from sightline.prompt.template import ChatTemplate, own_template
from sightline.types import Request


def png(height: int, width: int, colour: int = 0) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (colour, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


class Bench:
    def __init__(self, folder: Path, family: str, max_position: int = 4096) -> None:
        self.folder, self.family = folder, family
        self.common: dict[str, Any] = {
            "tokenizer": byte_tokenizer(folder, family),
            "spec": model_spec(family, max_position),
            "processor": processor_spec(family),
        }

    def chat(self, messages: Any, **options: Any) -> Request:
        template = options.pop("template", None) or ChatTemplate(own_template(self.family))
        return build_request(messages, template=template, limits=MediaConfig(), **self.common, **options)

    def text(self, prompt: str, media: Any = (), **options: Any) -> Request:
        return build_request_from_text(prompt, media, limits=MediaConfig(), **self.common, **options)

    def read(self, request: Request) -> str:
        return str(self.common["tokenizer"].decode(request.token_ids.tolist(), skip_special_tokens=False))


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
    image = bench.common["spec"].tokens.image
    assert np.flatnonzero(request.token_ids == image).tolist() == [
        place for span in request.spans for place in range(span.start, span.start + span.count)
    ]
    assert request.positions.shape == (3, len(request))
    assert request.token_ids.dtype == request.positions.dtype == np.int32
    assert request.positions.max() + 1 == len(request) + request.position_delta
    assert request.position_delta == (3 - 6) + (3 - 3)
    pads = bench.common["tokenizer"].token_of(image)
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


def test_same_image_twice(bench: Bench) -> None:
    """Red if two uses of an image share a span, or stop sharing a key."""
    picture = png(56, 56)
    request = bench.chat(question(picture, picture, png(56, 56, colour=9)))
    keys = [item.key for item in request.items]
    assert keys[0] == keys[1] != keys[2]
    assert len({span.start for span in request.spans}) == 3


def test_text_prompt_with_placeholders(bench: Bench) -> None:
    """Red if a raw prompt is put through a template, or its media are not taken in order."""
    spec = bench.common["spec"]
    pad = bench.common["tokenizer"].token_of(spec.tokens.image)
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
    """Red if template_kwargs or tools do not reach the template."""
    bench = Bench(tmp_path, "qwen3-vl")
    tools = [{"type": "function", "function": {"name": "look"}}]
    request = bench.chat(
        question(png(28, 28)), tools=tools, template_kwargs={"add_vision_id": True, "add_generation_prompt": False}
    )
    assert "Picture 1: <|vision_start|>" in bench.read(request)
    assert '{"type": "function", "function": {"name": "look"}}' in bench.read(request)
    assert bench.read(request).endswith("What?<|im_end|>\n")


def test_a_template_that_drops_an_image(tmp_path: Path) -> None:
    """Red if an image that the template does not write (Qwen3's system turn) vanishes without a word."""
    bench = Bench(tmp_path, "qwen3-vl")
    with pytest.raises(PromptError, match="for images: 0, but images were given: 1"):
        bench.chat([{"role": "system", "content": [{"type": "image", "image": png(28, 28)}]}, {"role": "user", "content": "x"}])


@pytest.mark.parametrize("place", ["text", "tools", "template_kwargs"])
def test_placeholders_from_outside(bench: Bench, place: str) -> None:
    """Red if a placeholder token written by a user passes, from wherever it comes."""
    tokens = bench.common["spec"].tokens
    for token in (tokens.image, tokens.video):
        name = bench.common["tokenizer"].token_of(token)
        options: dict[str, Any] = {
            "tools": {"tools": [{"x": name}]},
            "template_kwargs": {"template_kwargs": {"x": [name]}},
        }.get(place, {})
        with pytest.raises(PromptError) as caught:
            bench.chat([{"role": "user", "content": name if place == "text" else "x"}], **options)
        assert name in str(caught.value)


def test_reserved_template_options(bench: Bench) -> None:
    """Red if template_kwargs can replace the checked messages."""
    with pytest.raises(PromptError, match="'messages'"):
        bench.chat([{"role": "user", "content": "x"}], template_kwargs={"messages": []})


def test_too_long(tmp_path: Path) -> None:
    """Red if a prompt over the limit passes, one at the limit does not, or the model's own limit is not the default."""
    bench = Bench(tmp_path, "qwen3-vl", max_position=20)
    assert len(bench.text("x" * 20)) == 20
    with pytest.raises(PromptError, match="21 tokens, more than the limit of 20"):
        bench.text("x" * 21)
    assert len(bench.text("x" * 7, max_len=7)) == 7
    with pytest.raises(PromptError, match="8 tokens, more than the limit of 7"):
        bench.text("x" * 8, max_len=7)
    assert len(bench.text("x" * 30, max_len=30)) == 30


def test_far_too_long(tmp_path: Path) -> None:
    """Red if a long prompt is encoded as a whole before it is refused, or if one that fits is refused for its characters."""
    bench = Bench(tmp_path, "qwen3-vl", max_position=20)
    with pytest.raises(PromptError, match="about 400 tokens, more than the limit of 20"):
        bench.text("x" * 400)
    assert len(bench.text("<|object_ref_start|>" * 20)) == 20


def test_positions_too_far(tmp_path: Path) -> None:
    """Red if a video whose clock runs past the limit passes because its tokens are few."""
    bench = Bench(tmp_path, "qwen2.5-vl")
    video = video_item(6, 1, 1, fps=1.0)  # 6 rows; 4 positions per group: 0, 4, …, 20
    assert len(assemble("<|video_pad|>", [video], **bench.common, max_len=21)) == 6
    with pytest.raises(PromptError, match="positions reach 21, more than the limit of 20"):
        assemble("<|video_pad|>", [video], **bench.common, max_len=20)


def test_video_and_image_together(bench: Bench) -> None:
    """Red if the number of spans of a video does not follow the family's style, or rows go missing in a mix."""
    tokens, name = bench.common["spec"].tokens, bench.common["tokenizer"].token_of
    marks = (tokens.video_start, tokens.video, tokens.video_end)
    prompt = f"{name(tokens.image)}a{''.join(map(name, marks))}b{name(tokens.image)}"
    items = [image_item(1, 2), video_item(3, 2, 2, fps=2.0), image_item(2, 2)]
    request = assemble(prompt, items, **bench.common)
    per_group = STYLES[bench.family] != "qwen2_5"
    assert [span.item for span in request.spans] == ([0, 1, 1, 1, 2] if per_group else [0, 1, 2])
    assert sum(span.count for span in request.spans) == sum(item.rows for item in items)
    assert all(
        before.start + before.count <= after.start for before, after in zip(request.spans, request.spans[1:], strict=False)
    )


def test_torch_is_not_loaded() -> None:
    """Red if building a prompt starts to import torch or transformers, which the API process must not load."""
    code = "import sys, sightline.prompt.request; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
