"""One HTTP request for answers, from its arrival to its end: what is known of it, for usage, metadata and the log."""

import time
import uuid
from dataclasses import dataclass, field

from sightline.engine.messages import Finish, UpdateHead
from sightline.server.engine_client import Submission
from sightline.server.observer import RequestRecord
from sightline.server.responses import Metadata, PromptTokensDetails, Usage

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
            size=16 * len(request) + sum(len(item.ref.data) for item in request.items),
        )


@dataclass
class Call:
    route: str
    id: str
    arrived: float = field(default_factory=time.perf_counter)
    created: int = field(default_factory=lambda: int(time.time()))
    stream: bool = False
    prompts: tuple[PromptFacts, ...] = ()
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

    @property
    def prompt_tokens(self) -> int:
        return sum(prompt.tokens for prompt in self.prompts)

    def _leaders(self) -> list[Finish]:
        """The first answer of each prompt: the others of it found its prompt computed, which is no merit of a cache."""
        places, place = [], 0
        for prompt in self.prompts:
            places.append(place)
            place += prompt.answers
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
                image_tokens=sum(prompt.image_tokens for prompt in self.prompts),
                video_tokens=sum(prompt.video_tokens for prompt in self.prompts),
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
            images=sum(prompt.images for prompt in self.prompts),
            videos=sum(prompt.videos for prompt in self.prompts),
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
            image_tokens=sum(prompt.image_tokens for prompt in self.prompts),
            video_tokens=sum(prompt.video_tokens for prompt in self.prompts),
            images=sum(prompt.images for prompt in self.prompts),
            videos=sum(prompt.videos for prompt in self.prompts),
            encoded_items=self.encoded_items,
            stages=self._stage_seconds(),
        )
