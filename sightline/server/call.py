"""One HTTP request for answers, from its arrival to its end: what is known of it, for usage, metadata and the log."""

import time
import uuid
from dataclasses import dataclass, field

from sightline.engine.messages import Finish, UpdateHead
from sightline.server.observer import RequestRecord
from sightline.server.responses import CompletionTokensDetails, Metadata, PromptTokensDetails, Usage
from sightline.submission import Submission
from sightline.types import Request

_STAGES = ("fetch", "header", "prompt", "queue", "decode", "preprocess", "encode", "prefill", "per_token")


@dataclass(frozen=True)
class PromptFacts:
    """What is still wanted of a prompt when it has gone to the engine: its media are not kept here."""

    tokens: int
    answers: int
    image_tokens: int
    video_tokens: int
    images: int
    videos: int
    size: int  # bytes of its media and about as many as the rest takes

    @classmethod
    def of(cls, prompt: Submission) -> "PromptFacts":
        request = prompt.request
        kinds = [item.ref.kind for item in request.items]
        rows = {"image": 0, "video": 0}
        for span in request.spans:
            rows[kinds[span.item]] += span.count
        return cls(
            tokens=len(request),
            answers=prompt.sampling.n,
            image_tokens=rows["image"],
            video_tokens=rows["video"],
            images=kinds.count("image"),
            videos=kinds.count("video"),
            size=16 * len(request) + sum(_sizes_of_files(request).values()),
        )


def _sizes_of_files(request: Request) -> dict[bytes, int]:
    """Bytes by digest: the pages of a PDF share theirs."""
    return {item.ref.file_digest or item.ref.digest: len(item.ref.data) for item in request.items}


@dataclass
class Call:
    route: str
    id: str
    weight_version: str = "default"
    arrived: float = field(default_factory=time.perf_counter)
    created: int = field(default_factory=lambda: int(time.time()))
    stream: bool = False
    prompts: tuple[PromptFacts, ...] = ()
    first_token: float | None = None
    finishes: dict[int, Finish] = field(default_factory=dict)  # by place of the answer
    reasons: dict[int, str] = field(default_factory=dict)  # as told to the client
    last_told: dict[int, float] = field(default_factory=dict)  # when tokens came last, by place of the answer
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    content: dict[str, object] = field(default_factory=dict)  # for the log, if content is logged

    @classmethod
    def begin(cls, route: str, prefix: str, weight_version: str) -> "Call":
        return cls(route=route, id=f"{prefix}{uuid.uuid4().hex}", weight_version=weight_version)

    def begin_again(self) -> None:
        """What the engine has told is forgotten; another one begins anew."""
        self.first_token, self.completion_tokens, self.reasoning_tokens = None, 0, 0
        for told in (self.finishes, self.reasons, self.last_told):
            told.clear()

    def note(self, index: int, update: UpdateHead) -> None:
        if self.first_token is None and update.token_ids:
            self.first_token = time.perf_counter()
        self.completion_tokens += len(update.token_ids)
        if update.finish is not None:
            self.finishes[index] = update.finish

    @property
    def prompt_tokens(self) -> int:
        return sum(prompt.tokens for prompt in self.prompts)

    def _leaders(self) -> list[Finish]:
        """The first answer of each prompt: the others of it found its prompt computed, which is no merit of a cache."""
        indices, position = [], 0
        for prompt in self.prompts:
            indices.append(position)
            position += prompt.answers
        return [self.finishes[position] for position in indices if position in self.finishes]

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
                image_tokens=sum(prompt.image_tokens for prompt in self.prompts),
                video_tokens=sum(prompt.video_tokens for prompt in self.prompts),
            ),
            completion_tokens_details=CompletionTokensDetails(reasoning_tokens=self.reasoning_tokens),
            reasoning_tokens=self.reasoning_tokens,
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
            images=sum(prompt.images for prompt in self.prompts),
            videos=sum(prompt.videos for prompt in self.prompts),
            encoded_items=self.encoded_items,
            e2e_latency=round(seconds["e2e"], 6),
            ttft_latency=round(seconds["ttft"], 6),
            queue_latency=round(seconds.get("queue", 0.0), 6),
            weight_version=self.weight_version,
        )

    def record(self, status: int, error: str | None) -> RequestRecord:
        return RequestRecord(
            id=self.id,
            route=self.route,
            status=status,
            seconds=time.perf_counter() - self.arrived,
            finish_reasons=tuple(self.reasons[position] for position in sorted(self.reasons)),
            error=error,
            stream=self.stream,
            first_token_s=self.first_token - self.arrived if self.first_token is not None else None,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=sum(finish.cached_tokens for finish in self._leaders()),
            completion_tokens=self.completion_tokens,
            image_tokens=sum(prompt.image_tokens for prompt in self.prompts),
            video_tokens=sum(prompt.video_tokens for prompt in self.prompts),
            images=sum(prompt.images for prompt in self.prompts),
            videos=sum(prompt.videos for prompt in self.prompts),
            encoded_items=self.encoded_items,
            stages=self._stage_seconds(),
        )
