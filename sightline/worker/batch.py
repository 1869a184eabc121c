"""A packed batch on the device: the ForwardBatch that the model reads."""

import torch

from sightline.models.adapters import AdapterGates
from sightline.models.inputs import ForwardBatch, LogitsIndices
from sightline.ops.sequences import PagedSequences, StateIndices
from sightline.ops.transfer import send
from sightline.ops.workspace import Workspace
from sightline.worker.step_input import PackedBatch


def to_device(
    batch: PackedBatch,
    device: torch.device,
    embeddings: torch.Tensor,
    workspace: Workspace | None = None,
    has_states: bool = False,
    adapters: AdapterGates | None = None,
) -> ForwardBatch:
    """`embeddings` is the arena, [slots, width]; `workspace` is where keys are gathered; `has_states`: a layer keeps states;
    `adapters`: the model's, if it has any."""
    contexts = batch.logits_context
    return ForwardBatch(
        token_ids=send(batch.token_ids, device),
        positions=send(batch.positions, device),
        slots=send(batch.slots, device),
        sequences=PagedSequences(
            page_table=send(batch.page_table, device),
            query_starts=send(batch.query_starts, device),
            context_lengths=send(batch.context_lengths, device),
            query_lengths_host=batch.query_lengths_host,
            context_lengths_host=batch.context_lengths_host,
            workspace=workspace,
        ),
        vision_embeddings=embeddings if batch.has_rows else None,
        embedding_index=send(batch.embedding_index, device) if batch.has_rows else None,
        logits_indices=LogitsIndices(
            index=send(batch.logits_index, device),
            sequence=send(batch.logits_sequence, device),
            query_starts=torch.arange(len(contexts) + 1, dtype=torch.int32, device=device),
            context_lengths=send(contexts, device),
            context_lengths_host=tuple(contexts.tolist()),
        ),
        states=StateIndices(send(batch.state_slots, device), send(batch.fresh, device)) if has_states else None,
        adapter_gates=_gates(batch, device, adapters),
    )


def _gates(batch: PackedBatch, device: torch.device, adapters: AdapterGates | None) -> torch.Tensor | None:
    if batch.adapter_index is None:
        return None
    assert adapters is not None, "a token has an adapter, and the model has none"
    return adapters.of(send(batch.adapter_index, device))


def known_tokens(token_ids: torch.Tensor, sampled: torch.Tensor) -> torch.Tensor:
    """token_ids [tokens] with those in flight (-1 - slot) taken from `sampled` [slots], the tokens sampled last."""
    return torch.where(token_ids < 0, sampled[(-1 - token_ids).clamp(min=0)], token_ids)
