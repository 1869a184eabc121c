"""The plain way to an answer, one request at a time and without sharing anything: what the engine must be equal to."""

import numpy as np
import torch

from sightline.models.inputs import ForwardBatch, LayerCache, WantedTokens
from sightline.models.model import VisionLanguageModel
from sightline.ops.sequences import PagedSequences
from sightline.run.kv_cache import allocate_pages
from sightline.spec import ProcessorSpec
from sightline.types import Request
from sightline.vision.patches import make_patches
from sightline.vision.tower_batch import make_tower_batch


class SingleSequence:
    """One request's keys and values in pages of its own, and the forward passes over them."""

    def __init__(self, model: VisionLanguageModel, request: Request, capacity: int, page_size: int) -> None:
        weight = model.text.embed_tokens.weight
        self.model, self.request, self.device = model, request, weight.device
        self.length = 0  # tokens whose keys and values are stored
        pages = -(-capacity // page_size)
        self.caches: list[LayerCache] = allocate_pages(model.spec.text, pages, page_size, self.device, weight.dtype)
        self.page_table = torch.arange(pages, dtype=torch.int32, device=self.device)[None]

    def prefill(self, vision_rows: torch.Tensor | None, all_logits: bool = False) -> torch.Tensor:
        """Logits after the prompt, [1, vocab], or after each of its tokens, [tokens, vocab]."""
        request = self.request
        row_index = None
        if vision_rows is not None:
            first_row = np.cumsum([0, *(item.rows for item in request.items)])
            index = np.full(len(request), -1, np.int64)
            for span in request.spans:
                first = first_row[span.item] + span.row
                index[span.start : span.start + span.count] = np.arange(first, first + span.count)
            row_index = torch.from_numpy(index).to(self.device)
        positions = torch.from_numpy(request.positions).to(self.device)
        wanted = list(range(len(request))) if all_logits else [len(request) - 1]
        return self._forward(request.token_ids.astype(np.int64), positions, vision_rows, row_index, wanted)

    def decode(self, token: int) -> torch.Tensor:
        """Logits after one more token, [1, vocab]."""
        position = self.length + self.request.position_delta
        positions = torch.full((3, 1), position, dtype=torch.int32, device=self.device)
        return self._forward(np.array([token], np.int64), positions, None, None, [0])

    def _forward(
        self,
        token_ids: np.typing.NDArray[np.int64],
        positions: torch.Tensor,
        vision_rows: torch.Tensor | None,
        row_index: torch.Tensor | None,
        wanted: list[int],
    ) -> torch.Tensor:
        new = len(token_ids)
        context = self.length + new
        seen = [self.length + token + 1 for token in wanted]
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
            vision_rows=vision_rows,
            row_index=row_index,
            wanted=WantedTokens(
                index=torch.tensor(wanted, device=self.device),
                sequence=torch.zeros(len(wanted), dtype=torch.int64, device=self.device),
                query_starts=torch.arange(len(wanted) + 1, dtype=torch.int32, device=self.device),
                context_lengths=torch.tensor(seen, dtype=torch.int32, device=self.device),
                context_lengths_host=tuple(seen),
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
    weight = model.vision.patch_embed.weight
    patches = [
        make_patches(item, processor.image if item.ref.kind == "image" else processor.video, weight.device, weight.dtype)
        for item in request.items
    ]
    grids = [item.grid for item in request.items]
    return model.encode(make_tower_batch(patches, grids, model.spec.vision, weight.device))
