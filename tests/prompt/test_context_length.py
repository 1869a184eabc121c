"""The longest prompt and the longest answer: together they fill the context, and no more."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sightline.prompt.context_length import longest_answer, longest_prompt
from sightline.types import Request


def request(tokens: int, delta: int = 0) -> Request:
    return Request(np.zeros(tokens, np.int32), np.zeros((3, tokens), np.int32), delta, (), ())


@given(st.integers(2, 300), st.integers(1, 500))
def test_the_longest_prompt_leaves_room_for_one_token(max_model_len: int, asked: int) -> None:
    """Red when a longer prompt is let in, or a shorter one refused, than one whose answer has one token."""
    longest = longest_prompt(max_model_len)
    assert longest_answer(request(longest), asked, max_model_len) == 1
    assert longest + 1 == max_model_len


@given(st.integers(1, 300), st.integers(-50, 50), st.integers(1, 500))
def test_an_answer_fits_in_tokens_and_in_positions(tokens: int, delta: int, asked: int) -> None:
    """Red when an answer can run past the tokens or the positions that the model was made for, or ends before it must."""
    answer = longest_answer(request(tokens, delta), asked, 301 + 50)
    last_token, last_position = tokens + answer, tokens + delta + answer
    assert answer <= asked and max(last_token, last_position) <= 301 + 50
    assert answer == asked or max(last_token, last_position) == 301 + 50
