"""The chat template that `model new` writes. The published one was not at hand; how its prompts end was."""

from pathlib import Path
from typing import Any

import pytest

from parity.conversations import picture
from parity.subject import subject
from sightline.errors import PromptError
from step3_vl.conversations import WHOLE, conversations, user


def rendered(folder: Path, messages: list[dict[str, Any]]) -> str:
    return subject(folder).llm.prompts.render(messages)[0]


def test_turns_and_images(tiny_checkpoints: dict[str, Path]) -> None:
    """Red if an image is written in other words than the processor looks for, thoughts of earlier answers stay, or the answer
    does not begin inside its own."""
    assert rendered(tiny_checkpoints["step3-vl"], conversations()["several turns"]) == (
        "<|im_start|>system\nAnswer briefly. Ünïcödé.<|im_end|>\n"
        "<|im_start|>user\n<im_patch>What?<|im_end|>\n"
        "<|im_start|>assistant\nA picture.<|im_end|>\n"
        "<|im_start|>user\nAnd this <im_patch>?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n"
    )


def test_marks_of_media_are_one_token_each(tiny_checkpoints: dict[str, Path]) -> None:
    """Red if a mark of a window is split into bytes, which the model never saw."""
    llm = subject(tiny_checkpoints["step3-vl"]).llm
    request = subject(tiny_checkpoints["step3-vl"]).request([user(picture(160, 90, 1), "?")])
    names = [llm.tokenizer.token_of(int(token)) for token in request.token_ids]
    begin = names.index("<patch_start>")
    windows = [*["<patch_start>", *["<im_patch>"] * 4, "<patch_end>"] * 2]
    assert names[begin : begin + 24] == [*windows, "<im_start>", *["<im_patch>"] * 9, "<im_end>", "?"]


def test_a_placeholder_in_a_text_is_refused(tiny_checkpoints: dict[str, Path]) -> None:
    with pytest.raises(PromptError, match="<im_patch>"):
        rendered(tiny_checkpoints["step3-vl"], [user("What is <im_patch>?", picture(*WHOLE, 1))])
