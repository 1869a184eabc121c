"""Messages: what a template gets, which media are found, and what is refused with which name."""

from pathlib import Path
from typing import Any

import pytest

from sightline.errors import PromptError
from sightline.prompt.messages import MediaSource, normalise_messages

PLACEHOLDERS = ("<|image_pad|>", "<|video_pad|>")


def test_parts_and_media_in_order() -> None:
    """Red if a medium is lost, reordered, or leaves its source in the message that the template sees."""
    pixels, path = object(), Path("a.png")
    messages = [
        {"role": "system", "content": "S"},
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": "http://a/1.png", "detail": "high"}},
                {"type": "text", "text": "one"},
                {"type": "video", "video": "b.mp4"},
                {"type": "image_url", "image_url": "data:image/png;base64,AA"},
            ],
        },
        {"role": "assistant", "content": "two"},
        {
            "role": "user",
            "content": [
                {"type": "image", "image": pixels},
                {"type": "image", "image": path},
                {"type": "video_url", "video_url": {"url": "http://a/c.mp4"}},
            ],
        },
    ]
    normalised, media = normalise_messages(messages, PLACEHOLDERS)
    image, video = {"type": "image"}, {"type": "video"}
    assert normalised == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": [image, {"type": "text", "text": "one"}, video, image]},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": [image, image, video]},
    ]
    assert media == [
        MediaSource("image", "http://a/1.png"),
        MediaSource("video", "b.mp4"),
        MediaSource("image", "data:image/png;base64,AA"),
        MediaSource("image", pixels),
        MediaSource("image", path),
        MediaSource("video", "http://a/c.mp4"),
    ]


def test_other_fields_go_to_the_template() -> None:
    """Red if tool calls or names are dropped, nulls are passed on, or a call without content is refused."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "x", "name": "ada", "refusal": None},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "r", "tool_call_id": "1"},
        {"role": "assistant", "tool_calls": [call]},
    ]
    normalised, media = normalise_messages(messages, PLACEHOLDERS)
    assert normalised == [
        {"role": "user", "content": "x", "name": "ada"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "r", "tool_call_id": "1"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    assert media == []


def user(*content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "first"}, {"role": "user", "content": list(content)}]


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "messages is empty"),
        ("hello", "not str"),
        ({"role": "user"}, "not dict"),
        (None, "not NoneType"),
        (["hello"], r"messages\[0\] must be an object"),
        ([{"content": "x"}], r"messages\[0\] has role None"),
        ([{"role": "user", "content": "x"}, {"role": "developer", "content": "x"}], r"messages\[1\] has role 'developer'"),
        ([{"role": ["user"], "content": "x"}], r"messages\[0\] has role \['user'\]"),
        ([{"role": "user"}], r"messages\[0\] \(role 'user'\) has no content"),
        ([{"role": "assistant", "content": None}], r"messages\[0\] \(role 'assistant'\) has no content"),
        ([{"role": "assistant", "content": None, "tool_calls": []}], "has no content"),
        ([{"role": "user", "content": None, "tool_calls": [1]}], "has no content"),
        ([{"role": "user", "content": 3}], r"messages\[0\]\.content must be text or a list of parts, not int"),
        ([{"role": "user", "content": {"type": "text", "text": "x"}}], "not dict"),
        (user("text"), r"messages\[1\]\.content\[0\] must be an object with a type, not str"),
        (user({"text": "x"}), r"messages\[1\]\.content\[0\] has type None"),
        (user({"type": "text", "text": "x"}, {"type": "audio_url"}), r"content\[1\] has type 'audio_url'"),
        (user({"type": ["text"]}), r"content\[0\] has type \['text'\]"),
        (user({"type": "text"}), "no string in 'text'"),
        (user({"type": "text", "text": 3}), "no string in 'text'"),
        (user({"type": "image_url"}), r"content\[0\] has type 'image_url' but no URL in 'image_url.url'"),
        (user({"type": "image_url", "image_url": {}}), "no URL in 'image_url.url'"),
        (user({"type": "image_url", "image_url": {"url": ""}}), "no URL in 'image_url.url'"),
        (user({"type": "image_url", "image_url": {"url": b"x"}}), "no URL in 'image_url.url'"),
        (user({"type": "video_url", "video_url": 3}), "no URL in 'video_url.url'"),
        (user({"type": "image"}), "'image' but no 'image' field"),
        (user({"type": "video", "image": "x"}), "field 'image' that is not supported"),
        (user({"type": "image", "image": "x", "max_frames": 3}), r"content\[0\] has a field 'max_frames'"),
        (user({"type": "video", "video": "x", "fps": 0}), "fps is 0, but must be a number above 0"),
        (user({"type": "video_url", "video_url": {"url": ["u", 3]}}), "no URL in 'video_url.url'"),
        (user({"type": "image_url", "image_url": {"url": "u", "fps": 3}}), r"content\[0\]\.image_url has a field 'fps'"),
    ],
)
def test_refused(messages: Any, said: str) -> None:
    """Red if a malformed message is accepted, or the error does not say which one and what in it."""
    with pytest.raises(PromptError, match=said):
        normalise_messages(messages, PLACEHOLDERS)


CALL = {"function": {"name": "f", "arguments": {"list": [{"x": "<|image_pad|>"}]}}}


@pytest.mark.parametrize(
    ("messages", "where"),
    [
        ([{"role": "user", "content": "a <|image_pad|> b"}], r"messages\[0\]\.content contains '<\|image_pad\|>'"),
        (user({"type": "text", "text": "<|video_pad|>"}), r"messages\[1\]\.content\[0\]\.text contains '<\|video_pad\|>'"),
        ([{"role": "assistant", "content": "", "tool_calls": [CALL]}], r"messages\[0\] contains '<\|image_pad\|>'"),
        ([{"role": "user", "content": "x", "<|video_pad|>": 1}], r"messages\[0\] contains"),
    ],
)
def test_placeholder_in_text(messages: Any, where: str) -> None:
    """Red if text that a tokenizer would take for an image reaches the template from any field."""
    with pytest.raises(PromptError, match=where):
        normalise_messages(messages, PLACEHOLDERS)


def test_other_special_tokens_in_text_are_allowed() -> None:
    """Red if text is refused for more than the placeholders given (a start mark alone stands for nothing)."""
    text = "<|vision_start|><|image|>"
    assert normalise_messages([{"role": "user", "content": text}], PLACEHOLDERS)[0][0]["content"] == text
    with pytest.raises(PromptError, match=r"<\|image\|>"):
        normalise_messages([{"role": "user", "content": text}], ("<|image|>", "<|video|>"))
