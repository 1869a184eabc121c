"""Which tokens end an answer."""

from sightline.submission import end_tokens_of
from sightline.types import SamplingParams


def test_end_tokens() -> None:
    """Red when the model's end tokens are left out, or taken although they are to be ignored, or a request's own are."""
    assert end_tokens_of(SamplingParams(), (7, 8)) == {7, 8}
    assert end_tokens_of(SamplingParams(stop_token_ids=(8, 9)), (7, 8)) == {7, 8, 9}
    assert end_tokens_of(SamplingParams(stop_token_ids=(8, 9), ignore_eos=True), (7, 8)) == {8, 9}
    assert end_tokens_of(SamplingParams(ignore_eos=True), (7, 8)) == frozenset()
