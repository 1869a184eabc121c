"""What happens in the server, told to whoever counts: each method is one event. The default listens to nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sightline.engine.messages import Ready, Stats


@dataclass(frozen=True)
class RequestRecord:
    """A request that is over. Seconds run from when its head had come in."""

    id: str
    route: str  # as in the list of endpoints, e.g. /v1/chat/completions
    status: int  # 499: the client left before the end
    seconds: float
    finish_reasons: tuple[str, ...] = ()  # one per answer
    error: str | None = None
    stream: bool = False
    first_token_s: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    image_tokens: int = 0
    video_tokens: int = 0
    images: int = 0
    videos: int = 0
    encoded_items: int = 0
    stages: Mapping[str, float] = field(default_factory=dict)  # seconds: fetch, header, prompt, queue, decode, …


class Observer:
    """Called on the event loop; must not block."""

    def request_started(self, route: str) -> None:
        """The head of a request that wants an answer of the model has come in; request_finished will be told of it."""

    def request_received(self, route: str) -> None:
        """A request that wants an answer of the model has been read and authenticated."""

    def body_waited(self, seconds: float) -> None:
        """So long a request waited for room for its body, until it was read or given up."""

    def item_received(self, kind: str, size: int) -> None:
        """An image or a video came with a request: `size` bytes, 0 if it was named by its uuid alone."""

    def tokens_received(self, tokens: int, gap_s: float | None) -> None:
        """The engine told so many tokens of an answer, so many seconds after the ones before; None: they are its first."""

    def request_finished(self, record: RequestRecord) -> None:
        """A request is over, well or not."""

    def engine_ready(self, report: Ready) -> None:
        """An engine has been loaded: at the start, and after each restart. Its counters start from 0."""

    def engine_died(self, restarts: int) -> None:
        """The engine crashed, `restarts` times so far."""

    def engine_stats(self, stats: Stats) -> None:
        """Gauges and counters of the engine, or of all, a few times per second while it works."""

    # Where there are several engines

    def engine_joined(self, report: Ready) -> None:
        """Another one is ready; the report is of all together."""

    def engine_left(self) -> None:
        """One crashed, others answer."""

    def request_routed(self, engine: int, spilled: bool) -> None:
        """A request went to an engine; `spilled`: another one has its images or its beginning, but is too far behind."""

    def engine_hits(self, engine: int, hits: int) -> None:
        """So many embeddings were found in that engine's cache since it started."""
