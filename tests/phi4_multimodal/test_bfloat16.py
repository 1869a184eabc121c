"""In bfloat16 our embeddings and logits err at most 1.5 times as much as transformers' own, against transformers in float32."""

from pathlib import Path

import pytest
import torch

from parity.conversations import conversations
from parity.subject import subject
from phi4_multimodal.oracle import oracle
from phi4_multimodal.test_parity import GREEDY_TOKENS, pixels

every_conversation = pytest.mark.parametrize("name", conversations())


def root_mean_square(x: torch.Tensor) -> float:
    return float(x.square().mean().sqrt())


@every_conversation
def test_bfloat16(phi4: Path, name: str) -> None:
    """Logits are teacher-forced on float32's own answer. Where its best two are closer than twice transformers' own error
    either may win; everywhere else the best token must be float32's."""
    ours = subject(phi4, dtype=torch.bfloat16)
    request = ours.request(conversations()[name])
    images, adapted = pixels(request), bool(request.items)
    exact, rounded = (oracle(phi4, adapted, dtype) for dtype in (torch.float32, torch.bfloat16))
    if images:
        truth = torch.cat(exact.rows(images))
        theirs, mine = torch.cat(rounded.rows(images)).float(), ours.rows(request)
        assert mine is not None
        assert root_mean_square(mine.float() - truth) <= 1.5 * root_mean_square(theirs - truth)
    answer = exact.greedy(request, images, GREEDY_TOKENS)
    truth, theirs = exact.logits(request, images, answer), rounded.logits(request, images, answer).float()
    found = ours.logits(request, answer).float()
    assert root_mean_square(found - truth) <= 1.5 * root_mean_square(theirs - truth)
    places = slice(len(request) - 1, -1)
    best = truth[places].topk(2, dim=1).values
    tie = best[:, 0] - best[:, 1] < 2 * (theirs - truth)[places].abs().max()
    differs = found[places].argmax(1) != truth[places].argmax(1)
    assert not (differs & ~tie).any()
    assert tie.float().mean() < 0.75, "ties nearly everywhere: the comparison says nothing"
