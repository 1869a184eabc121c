"""The short causal convolution in front of a recurrent layer: over the last few tokens of a sequence, channel by channel."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from sightline.ops.dispatch import ExampleMaker, Tolerance, op
from sightline.ops.sequences import PagedSequences, StateIndices


def new_sequences(
    make: ExampleMaker, lengths: tuple[int, ...], fresh: tuple[bool, ...], slots: int
) -> tuple[PagedSequences, StateIndices]:
    """For examples: sequences with so many new tokens, and where their states are; pages are not looked at."""
    starts = make.tensor([sum(lengths[:count]) for count in range(len(lengths) + 1)])
    contexts = tuple(length if new else length + 70 for length, new in zip(lengths, fresh, strict=True))
    table = torch.zeros(len(lengths), 1, dtype=torch.int32, device=make.device)
    sequences = PagedSequences(table, starts, make.tensor(contexts), lengths, contexts)
    return sequences, StateIndices(make.permutation(slots)[: len(lengths)], make.tensor(fresh, torch.bool))


def _examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    cases = (
        # channels, width, new tokens of each sequence, whether each begins
        (40, 4, (1, 1, 1), (False, True, False)),
        (64, 4, (2, 70, 1, 3), (False, True, True, False)),
        (24, 3, (33, 5), (True, False)),
        (40, 4, (1,), (False,)),
    )
    for channels, width, lengths, fresh in cases:
        sequences, states = new_sequences(make, lengths, fresh, 6)
        yield {
            "x": make.normal(sum(lengths), channels + 16)[:, :channels],
            "weight": make.normal(channels, width),
            "kept": make.normal(6, width - 1, channels),
            "sequences": sequences,
            "states": states,
        }


@op(examples=_examples, tolerances={torch.float32: Tolerance(1e-5, 1e-5), torch.bfloat16: Tolerance(1e-2, 1.6e-2)})
def causal_conv(
    x: torch.Tensor, weight: torch.Tensor, kept: torch.Tensor, sequences: PagedSequences, states: StateIndices
) -> torch.Tensor:
    """silu(sum over i of weight[:, i] * token t - (width - 1) + i), in float32, rounded once. Returns [tokens, channels].

    x [tokens, channels], possibly a strided view, weight [channels, width], kept [slots, width - 1, channels]: the last tokens
    of each sequence before its new ones, oldest first; afterwards its last ones. Before a sequence's first token there are
    zeros.
    """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    taps, start = weight.float(), 0
    before = weight.shape[1] - 1
    for number, length in enumerate(sequences.query_lengths_host):
        slot, new = states.slots[number], x[start : start + length]
        earlier = torch.where(states.fresh[number], torch.zeros_like(kept[0]), kept[slot])
        every = torch.cat((earlier, new))
        total = torch.zeros(new.shape, dtype=torch.float32, device=x.device)
        for tap in range(before + 1):
            total += every[tap : tap + length].float() * taps[:, tap]
        out[start : start + length] = F.silu(total)
        kept[slot] = every[length:]
        start += length
    return out
