"""One HTTP request for answers, from its arrival to its end: what is known of it, for usage, metadata and the log."""

import time
import uuid
from dataclasses import dataclass, field

from sightline.engine.messages import Finish, UpdateHead
from sightline.server.engine_client import Submission
from sightline.server.observer import RequestRecord
from sightline.server.responses import Metadata, PromptTokensDetails, Usage

_STAGES = ("fetch", "header", "prompt", "queue", "decode", "preprocess", "encode", "prefill", "per_token")


@dataclass
class Call:
    route: str
    id: str
    arrived: float = field(default_factory=time.perf_counter)
    created: int = field(default_factory=lambda: int(time.time()))
    stream: bool = False
    prompts: tuple[Submission, ...] = ()
    first_token: float | None = None
    finishes: dict[int, Finish] = field(default_factory=dict)  # by place of the answer
    reasons: dict[int, str] = field(default_factory=dict)  # as told to the client
    last_told: dict[int, float] = field(default_factory=dict)  # when tokens came last, by place of the answer
    completion_tokens: int = 0
    content: dict[str, object] = field(default_factory=dict)  # for the log, if content is logged

    @classmethod
    def begin(cls, route: str, prefix: str) -> "Call":
        return cls(route=route, id=f"{prefix}-{uuid.uuid4().hex}")

    def note(self, index: int, update: UpdateHead) -> None:
        if self.first_token is None and update.token_ids:
            self.first_token = time.perf_counter()
        self.completion_tokens += len(update.token_ids)
        if update.finish is not None:
            self.finishes[index] = update.finish

    def _rows(self, kind: str) -> int:
        """Tokens of the prompts that stand for images or videos."""
        return sum(
            span.count
            for prompt in self.prompts
            for span in prompt.request.spans
            if prompt.request.items[span.item].ref.kind == kind
        )

    def _items(self, kind: str) -> int:
        return sum(item.ref.kind == kind for prompt in self.prompts for item in prompt.request.items)

    @property
    def prompt_tokens(self) -> int:
        return sum(len(prompt.request) for prompt in self.prompts)

    def _leaders(self) -> list[Finish]:
        """The first answer of each prompt: the others of it found its prompt computed, which is no merit of a cache."""
        places, place = [], 0
        for prompt in self.prompts:
            places.append(place)
            place += prompt.sampling.n
        return [self.finishes[place] for place in places if place in self.finishes]

    @property
    def encoded_items(self) -> int:
        return sum(finish.encoded_items for finish in self._leaders())

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            total_tokens=self.prompt_tokens + self.completion_tokens,
            prompt_tokens_details=PromptTokensDetails(
                cached_tokens=sum(finish.cached_tokens for finish in self._leaders()),
                image_tokens=self._rows("image"),
                video_tokens=self._rows("video"),
            ),
        )

    def _stage_seconds(self) -> dict[str, float]:
        """Of the prompt that took longest in each stage."""
        found: dict[str, float] = {}
        for finish in self._leaders():
            for stage in _STAGES:
                found[stage] = max(found.get(stage, 0.0), finish.timings.get(stage, 0.0))
        return found

    def metadata(self) -> Metadata:
        now = time.perf_counter()
        first = (self.first_token or now) - self.arrived
        seconds = {"e2e": now - self.arrived, "ttft": first, **self._stage_seconds()}
        return Metadata(
            request_id=self.id,
            timings_ms={stage: round(1000 * value, 3) for stage, value in seconds.items()},
            images=self._items("image"),
            videos=self._items("video"),
            encoded_items=self.encoded_items,
        )

    def record(self, status: int, error: str | None) -> RequestRecord:
        return RequestRecord(
            id=self.id,
            route=self.route,
            status=status,
            seconds=time.perf_counter() - self.arrived,
            finish_reasons=tuple(self.reasons[place] for place in sorted(self.reasons)),
            error=error,
            stream=self.stream,
            first_token_s=self.first_token - self.arrived if self.first_token is not None else None,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=sum(finish.cached_tokens for finish in self._leaders()),
            completion_tokens=self.completion_tokens,
            image_tokens=self._rows("image"),
            video_tokens=self._rows("video"),
            images=self._items("image"),
            videos=self._items("video"),
            encoded_items=self.encoded_items,
            stages=self._stage_seconds(),
        )
