"""Our side of the comparison: the same conversations through the package."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from sightline.llm import LLM
from sightline.prompt.request import build_request
from sightline.run.generate import SingleSequence, encode_items
from sightline.types import Request


class Subject:
    def __init__(self, folder: Path, device: str, dtype: torch.dtype) -> None:
        self.llm = LLM(folder, device=device, dtype=str(dtype).removeprefix("torch."))

    def request(self, messages: list[dict[str, Any]]) -> Request:
        llm = self.llm
        return build_request(
            messages,
            template=llm.template,
            tokenizer=llm.tokenizer,
            spec=llm.spec,
            processor=llm.processor,
            limits=llm.config.media,
        )

    def rows(self, request: Request) -> torch.Tensor | None:
        return encode_items(self.llm.model, request, self.llm.processor)

    def logits(self, request: Request, continuation: list[int] | None = None) -> torch.Tensor:
        """[tokens, vocab]: after each prompt token, then after each token of the continuation, fed one at a time."""
        continuation = continuation or []
        sequence = SingleSequence(self.llm.model, request, len(request) + len(continuation), page_size=16)
        parts = [sequence.prefill(self.rows(request), all_logits=True)]
        parts += [sequence.decode(token) for token in continuation]
        return torch.cat(parts)

    def greedy(self, request: Request, count: int) -> list[int]:
        sequence = SingleSequence(self.llm.model, request, len(request) + count, page_size=16)
        logits = sequence.prefill(self.rows(request))
        tokens: list[int] = []
        while len(tokens) < count:
            tokens.append(int(logits[0].argmax()))
            logits = sequence.decode(tokens[-1])
        return tokens


@lru_cache(maxsize=12)
def subject(folder: Path, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Subject:
    return Subject(folder, device, dtype)
