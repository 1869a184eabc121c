"""The plain way to an answer, one request at a time and without sharing anything: what the engine must be equal to."""

import itertools
from collections.abc import Sequence

import numpy as np
import torch

from file_patches import make_patches
from sightline.encoder.embeddings import arrange_embeddings, split_views
from sightline.models.inputs import ForwardBatch, LayerCache, LogitsIndices
from sightline.models.model import VisionLanguageModel
from sightline.ops.sequences import PagedSequences, StateIndices
from sightline.spec import ProcessorSpec
from sightline.types import Request
from sightline.worker.caches import allocate_caches


class SingleSequence:
    """One request's keys and values in pages of its own, and the forward passes over them."""

    def __init__(self, model: VisionLanguageModel, request: Request, capacity: int, page_size: int) -> None:
        weight = model.text.embed_tokens.weight
        self.model, self.request, self.device = model, request, weight.device
        self.length = 0  # tokens whose keys and values are stored
        pages = -(-capacity // page_size)
        self.caches: list[LayerCache] = allocate_caches(model.spec.text.layers, pages, page_size, 1, self.device, weight.dtype)
        self.page_table = torch.arange(pages, dtype=torch.int32, device=self.device)[None]

    def prefill(
        self, vision_embeddings: torch.Tensor | None, all_logits: bool = False, cuts: Sequence[int] = ()
    ) -> torch.Tensor:
        """Logits after the prompt, [1, vocab], or after each of its tokens, [tokens, vocab]; cut after so many tokens."""
        request = self.request
        embedding_index = None
        if vision_embeddings is not None:
            first_row = np.cumsum([0, *(item.rows for item in request.items)])
            index = np.full(len(request), -1, np.int64)
            for span in request.spans:
                first = first_row[span.item] + span.row
                index[span.start : span.start + span.count] = np.arange(first, first + span.count)
            embedding_index = torch.from_numpy(index).to(self.device)
        positions = torch.from_numpy(request.positions).to(self.device)
        found = []
        for start, end in itertools.pairwise((0, *cuts, len(request))):
            logits_indices = list(range(end - start)) if all_logits else [end - start - 1]
            part = None if embedding_index is None else embedding_index[start:end]
            ids = request.token_ids[start:end].astype(np.int64)
            found.append(self._forward(ids, positions[:, start:end].contiguous(), vision_embeddings, part, logits_indices))
        return torch.cat(found) if all_logits else found[-1]

    def decode(self, token: int) -> torch.Tensor:
        """Logits after one more token, [1, vocab]."""
        position = self.length + self.request.position_delta
        positions = torch.full((3, 1), position, dtype=torch.int32, device=self.device)
        return self._forward(np.array([token], np.int64), positions, None, None, [0])

    def _forward(
        self,
        token_ids: np.typing.NDArray[np.int64],
        positions: torch.Tensor,
        vision_embeddings: torch.Tensor | None,
        embedding_index: torch.Tensor | None,
        logits_indices: list[int],
    ) -> torch.Tensor:
        new = len(token_ids)
        context = self.length + new
        seen = [self.length + token + 1 for token in logits_indices]
        batch = ForwardBatch(
            token_ids=torch.from_numpy(token_ids).to(self.device),
            positions=positions,
            slots=torch.arange(self.length, context, device=self.device),
            sequences=PagedSequences(
                page_table=self.page_table,
                query_starts=torch.tensor([0, new], dtype=torch.int32, device=self.device),
                context_lengths=torch.tensor([context], dtype=torch.int32, device=self.device),
                query_lengths_host=(new,),
                context_lengths_host=(context,),
            ),
            vision_embeddings=vision_embeddings,
            embedding_index=embedding_index,
            logits_indices=LogitsIndices(
                index=torch.tensor(logits_indices, device=self.device),
                sequence=torch.zeros(len(logits_indices), dtype=torch.int64, device=self.device),
                query_starts=torch.arange(len(logits_indices) + 1, dtype=torch.int32, device=self.device),
                context_lengths=torch.tensor(seen, dtype=torch.int32, device=self.device),
                context_lengths_host=tuple(seen),
            ),
            states=StateIndices(
                torch.zeros(1, dtype=torch.int64, device=self.device), torch.tensor([self.length == 0], device=self.device)
            ),
        )
        logits = self.model(batch, self.caches)
        self.length = context
        assert isinstance(logits, torch.Tensor)
        return logits


def encode_items(model: VisionLanguageModel, request: Request, processor: ProcessorSpec) -> torch.Tensor | None:
    """Embedding rows of the request's items, one after another; None for text."""
    if not request.items:
        return None
    weight = model.text.embed_tokens.weight
    patches = [
        make_patches(item, processor.image if item.ref.kind == "image" else processor.video, weight.device, weight.dtype)
        for item in request.items
    ]
    views = [view for item, own in zip(request.items, patches, strict=True) for view in split_views(item, own)]
    rows = model.encode(model.vision.make_batch(views, [grid for item in request.items for grid in item.grids]))
    return arrange_embeddings(rows, request.items, processor, model.vision)
