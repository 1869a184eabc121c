"""Prometheus metrics: an observer that counts, and /metrics, where the counts are read.

What happens in the API process is counted as it happens. What the engine counts comes with its reports; those counters begin
at 0 again with each engine process, so only their growth is added here, and no counter ever goes backwards.
"""

import asyncio
import contextlib

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import generate_latest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sightline import __version__
from sightline.engine.messages import Ready, Stats
from sightline.server.admission import AdmissionBudget
from sightline.server.engine_client import EngineClient
from sightline.server.engine_group import EngineGroup
from sightline.server.errors import ApiError
from sightline.server.observer import Observer, RequestRecord

# Seconds. Each step is at most 2.5 times the one before: fine enough for percentiles, few enough for many series.
STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.075, 0.15, 0.3, 0.5, 1.0, 2.5)  # of what recurs for each token
STAGE_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
REQUEST_BUCKETS = (*STAGE_BUCKETS[1:], 60.0, 120.0, 300.0, 600.0)
TOKEN_BUCKETS = tuple(float(4**power) for power in range(11))  # 1 to a million

VISION_STAGES = ("fetch", "header", "decode", "preprocess", "encode")
CACHES = ("prefix", "embedding", "host")
OUTCOMES = ("encoded", "away", "refused")  # of items for a server that encodes
FINISH_REASONS = ("stop", "length", "tool_calls")
KINDS = ("image", "video")
# Always this one: the library's writer of OpenMetrics, which Prometheus asks for first, turns the colon in names into a line.
TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"
ENGINE_PATIENCE_S = 0.5  # how long a reader of metrics waits for a report as of now; after it, the last one is shown


class Metrics(Observer):
    def __init__(self, admission: AdmissionBudget, model: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call] # when a counter was made is nobody's question
        self.registry = CollectorRegistry()
        self._model = model
        self._last: dict[str, float] = {}  # what the engine's counters were when it last told
        self._kv_bytes = 0
        self._host_cache = False
        self._make_request_metrics()
        self._make_vision_metrics()
        self._make_engine_metrics()
        self._gauge("inflight_requests", "Requests whose body is being read or whose answer is being made.").set_function(
            lambda: admission.requests
        )
        self._gauge("inflight_bytes", "Bytes of bodies and media that unfinished requests hold.").set_function(
            lambda: admission.bytes
        )
        self._gauge("num_requests_unread", "Requests that wait for room in memory, most of them unread.").set_function(
            lambda: admission.waiting
        )
        ProcessCollector(registry=self.registry)

    # ---- What there is

    def _make_request_metrics(self) -> None:
        self._started = self._counter("requests_started", "Requests for answers that have come in.", "route")
        self._in_progress = self._gauge("requests_in_progress", "Requests for answers that are not over.", "route")
        self._requests = self._counter("requests", "Requests for answers that are over.", "route", "status")
        self._success = self._counter("request_success", "Answers that came to their end.", "finished_reason")
        self._prompt_tokens = self._counter("prompt_tokens", "Tokens of prompts that were answered, cached ones too.")
        self._generation_tokens = self._counter("generation_tokens", "Tokens of answers.")
        self._media_tokens = self._counter("prompt_media_tokens", "Prompt tokens that stand for media.", "kind")
        seconds = "Seconds from a request's arrival to"
        self._ttft = self._histogram("time_to_first_token_seconds", f"{seconds} the first token of its answer.")
        self._e2e = self._histogram("e2e_request_latency_seconds", f"{seconds} the end of its answer.")
        self._queue = self._histogram("request_queue_time_seconds", "Seconds that a request waited in the engine for its turn.")
        self._body_queue = self._histogram("body_queue_time_seconds", "Seconds that a request waited for room for its body.")
        self._prefill = self._histogram("request_prefill_time_seconds", "Seconds of steps that computed a request's prompt.")
        self._generate = self._histogram("request_decode_time_seconds", "Seconds from the first token of an answer to its end.")
        self._inter_token = self._histogram(
            "inter_token_latency_seconds", "Seconds between a token of an answer and the one before.", STEP_BUCKETS
        )
        self._per_token = self._histogram(
            "time_per_output_token_seconds", "Seconds per token after the first, mean of a request.", STEP_BUCKETS
        )
        self._request_prompt = self._histogram("request_prompt_tokens", "Prompt tokens per request.", TOKEN_BUCKETS)
        self._request_generation = self._histogram("request_generation_tokens", "Answer tokens per request.", TOKEN_BUCKETS)
        for reason in FINISH_REASONS:
            self._success.labels(reason)

    def _make_vision_metrics(self) -> None:
        self._stages = Histogram(
            "sightline:vision_stage_seconds",
            "Seconds of a request in a stage of the vision path; a request that skips a stage is not counted in it.",
            ["stage"],
            registry=self.registry,
            buckets=STAGE_BUCKETS,
        )
        self._received = {kind: self._counter(f"{kind}s_received", f"{kind.capitalize()}s in requests.") for kind in KINDS}
        self._decoded = {kind: self._counter(f"{kind}s_decoded", f"{kind.capitalize()}s decoded to pixels.") for kind in KINDS}
        self._encoded = {
            kind: self._counter(f"{kind}s_encoded", f"{kind.capitalize()}s that went through the tower.") for kind in KINDS
        }
        self._media_bytes = self._counter("media_received_bytes", "Bytes of media in requests.", "kind")
        self._patches = self._counter("patches_encoded", "Patches that went through the tower.")
        self._frames_shared = self._counter(
            "video_frames_shared", "Temporal patches of videos that were not encoded: earlier ones have the same pixels."
        )
        for stage in VISION_STAGES:
            self._stages.labels(stage)
        for kind in KINDS:
            self._media_bytes.labels(kind)
            self._media_tokens.labels(kind)

    def _make_engine_metrics(self) -> None:
        unit = "prefix: prompt tokens; embedding and host: images and videos"
        self._hits = self._counter("cache_hits", f"What was found in a cache ({unit}).", "cache")
        self._misses = self._counter("cache_misses", f"What was looked for in a cache and not found ({unit}).", "cache")
        self._evictions = self._counter("cache_evictions", "What left a cache for others (prefix: pages).", "cache")
        self._states_taken = self._counter("state_snapshots", "States of recurrent layers that were kept for prompts to come.")
        self._itl_exceeded = self._counter(
            "itl_target_exceeded_steps", "Steps that may take longer than target_itl_ms says, because more work waits."
        )
        self._state_tokens_lost = self._counter(
            "state_tokens_lost", "Prompt tokens whose pages were cached, computed again because no state was kept there."
        )
        self._cache_bytes = self._gauge("cache_bytes", "Bytes that a cache holds.", "cache")
        self._cache_capacity = self._gauge("cache_capacity_bytes", "The most bytes that a cache can hold.", "cache")
        self._running = self._gauge("num_requests_running", "Answers in the making, those of one request each.")
        self._waiting = self._gauge("num_requests_waiting", "Answers that wait for their turn.")
        self._kv_usage = self._gauge("kv_cache_usage_perc", "Share of key/value pages that answers in the making use, 0 to 1.")
        self._memory = self._gauge("engine_memory_bytes", "Memory that the engine took when it started.", "part")
        self._busy = self._counter("engine_busy_seconds", "Seconds that the device worked for the engine.", "part")
        self._gpu_bytes = self._gauge("engine_gpu_bytes", "Memory of the GPU that the engine holds now, libraries apart.")
        self._graphs = self._gauge("engine_graphs", "CUDA graphs that the engine has recorded.")
        self._up = self._gauge("engine_up", "1 while an engine is loaded and answers, 0 while it loads or has crashed.")
        self._work_age = self._gauge(
            "engine_work_age_seconds",
            "Seconds since the engine's current step, or stage of its start, began or last advanced; 0 while it is idle.",
        )
        self._info = self._gauge("info", "Always 1; its labels say what is served.", "version", "model", "device", "dtype")
        self._pages = self._gauge(
            "cache_config_info", "Always 1; its labels say how keys and values are kept.", "block_size", "num_gpu_blocks"
        )
        self._restarts = self._counter("engine_restarts", "Crashes of the engine, after which it is started again.")
        self._preemptions = self._counter("num_preemptions", "Answers put back into the queue for want of memory.")
        self._steps = self._counter("engine_steps", "Steps of the engine.")
        self._step_tokens = self._counter("engine_tokens", "Tokens computed: of answers, and of prompts what was not cached.")
        several = "where there are several (data_parallel_size)"
        self._routed = self._counter("engine_requests_routed", f"Requests that went to an engine, {several}.", "engine")
        self._spilled = self._counter(
            "engine_requests_spilled",
            f"Requests that an engine got because their own was too far behind, {several}.",
            "engine",
        )
        self._engine_hits = self._counter("engine_embedding_hits", f"Images found in an engine's cache, {several}.", "engine")
        elsewhere = "to a server that encodes (encoder_url)"
        self._encoder_up = self._gauge("encoder_up", "Engines whose server that encodes (encoder_url) answers.")
        self._encoder_items = self._counter("encoder_items", f"Images and videos that were to go {elsewhere}.", "outcome")
        self._encoder_bytes = self._counter("encoder_received_bytes", "Bytes of embeddings that came from such a server.")
        for outcome in OUTCOMES:
            self._encoder_items.labels(outcome)
        for cache in CACHES:
            for metric in (self._hits, self._misses, self._cache_bytes, self._cache_capacity):
                metric.labels(cache)
        for cache in ("prefix", "embedding"):
            self._evictions.labels(cache)
        for part in ("steps", "tower"):
            self._busy.labels(part)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"sightline:{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"sightline:{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...] = REQUEST_BUCKETS) -> Histogram:
        return Histogram(f"sightline:{name}", text, registry=self.registry, buckets=buckets)

    # ---- Events

    def item_received(self, kind: str, size: int) -> None:
        self._received[kind].inc()
        self._media_bytes.labels(kind).inc(size)

    def body_waited(self, seconds: float) -> None:
        self._body_queue.observe(seconds)

    def tokens_received(self, tokens: int, gap_s: float | None) -> None:
        self._generation_tokens.inc(tokens)
        if gap_s is not None:
            for _ in range(tokens):
                self._inter_token.observe(gap_s / tokens)

    def request_started(self, route: str) -> None:
        self._started.labels(route).inc()
        self._in_progress.labels(route).inc()

    def request_finished(self, record: RequestRecord) -> None:
        self._in_progress.labels(record.route).dec()
        self._requests.labels(record.route, str(record.status)).inc()
        for reason in record.finish_reasons:
            self._success.labels(reason).inc()
        if record.first_token_s is not None:  # its prompt was computed
            self._ttft.observe(record.first_token_s)
            self._prompt_tokens.inc(record.prompt_tokens)
            self._request_prompt.observe(record.prompt_tokens)
            self._media_tokens.labels("image").inc(record.image_tokens)
            self._media_tokens.labels("video").inc(record.video_tokens)
        if record.status == 200 and record.finish_reasons:
            self._answered(record)

    def _answered(self, record: RequestRecord) -> None:
        self._e2e.observe(record.seconds)
        self._request_generation.observe(record.completion_tokens)
        self._hits.labels("prefix").inc(record.cached_tokens)
        self._misses.labels("prefix").inc(record.prompt_tokens - record.cached_tokens)
        if record.first_token_s is not None:
            self._generate.observe(record.seconds - record.first_token_s)
        for stage, metric in (("queue", self._queue), ("prefill", self._prefill)):
            if stage in record.stages:
                metric.observe(record.stages[stage])
        if record.stages.get("per_token"):
            self._per_token.observe(record.stages["per_token"])
        for stage in VISION_STAGES:
            if record.stages.get(stage):
                self._stages.labels(stage).observe(record.stages[stage])

    def engine_ready(self, report: Ready) -> None:
        self._last.clear()
        self.engine_joined(report)

    def engine_joined(self, report: Ready) -> None:
        memory = report.memory
        self._kv_bytes, self._host_cache = memory.kv_cache, memory.host_embeddings > 0
        for part in ("weights", "kv_cache", "embeddings", "states", "language", "vision", "graphs", "others"):
            self._memory.labels(part).set(getattr(memory, part))
        for cache, count in zip(CACHES, (memory.kv_cache, memory.embeddings, memory.host_embeddings), strict=True):
            self._cache_capacity.labels(cache).set(count)
        self._pages.clear()
        if report.page_size:
            self._pages.labels(str(report.page_size), str(memory.kv_tokens // report.page_size)).set(1)
        self._info.clear()
        self._info.labels(__version__, self._model, report.device, report.dtype).set(1)
        self._up.set(1)

    def engine_died(self, restarts: int) -> None:
        self._restarts.inc()
        for gauge in (self._up, self._running, self._waiting, self._kv_usage):
            gauge.set(0)
        for cache in CACHES:
            self._cache_bytes.labels(cache).set(0)

    def engine_left(self) -> None:
        self._restarts.inc()

    def request_routed(self, engine: int, spilled: bool) -> None:
        self._routed.labels(str(engine)).inc()
        if spilled:
            self._spilled.labels(str(engine)).inc()

    def engine_hits(self, engine: int, hits: int) -> None:
        name = f"embedding hits of engine {engine}"
        if hits < self._last.get(name, 0):  # it was started again
            self._last[name] = 0
        self._grow(self._engine_hits.labels(str(engine)), name, hits)

    def engine_stats(self, stats: Stats) -> None:
        self._running.set(stats.running)
        self._waiting.set(stats.waiting)
        self._kv_usage.set(stats.pages_used / stats.pages)
        self._cache_bytes.labels("prefix").set(self._kv_bytes * stats.prefix_pages // stats.pages)
        self._cache_bytes.labels("embedding").set(stats.embedding_bytes_used)
        self._cache_bytes.labels("host").set(stats.host_bytes_used)
        # What is not in the arena is looked for in the host's memory, if there is such a cache.
        self._grow(self._hits.labels("embedding"), "embedding hits", stats.embedding_hits)
        self._grow(self._misses.labels("embedding"), "embedding misses", stats.embedding_misses + stats.host_hits)
        self._grow(self._hits.labels("host"), "host hits", stats.host_hits)
        if self._host_cache:
            self._grow(self._misses.labels("host"), "host misses", stats.embedding_misses)
        self._grow(self._evictions.labels("prefix"), "prefix evictions", stats.prefix_evictions)
        self._grow(self._evictions.labels("embedding"), "embedding evictions", stats.embedding_evictions)
        self._grow(self._evictions.labels("state"), "state evictions", stats.state_evictions)
        self._grow(self._states_taken, "state snapshots", stats.states_taken)
        self._grow(self._itl_exceeded, "steps beyond the target", stats.itl_target_exceeded)
        self._grow(self._state_tokens_lost, "state tokens lost", stats.state_tokens_lost)
        self._grow(self._decoded["image"], "images decoded", stats.items_decoded - stats.videos_decoded)
        self._grow(self._decoded["video"], "videos decoded", stats.videos_decoded)
        self._grow(self._encoded["image"], "images encoded", stats.items_encoded - stats.videos_encoded)
        self._grow(self._encoded["video"], "videos encoded", stats.videos_encoded)
        self._grow(self._frames_shared, "frames shared", stats.frames_shared)
        self._grow(self._patches, "patches", stats.patches_encoded)
        self._grow(self._preemptions, "preemptions", stats.preemptions)
        self._grow(self._steps, "steps", stats.steps)
        self._grow(self._step_tokens, "tokens", stats.tokens)
        self._grow(self._busy.labels("steps"), "step seconds", stats.step_seconds)
        self._grow(self._busy.labels("tower"), "tower seconds", stats.tower_seconds)
        self._gpu_bytes.set(stats.gpu_bytes)
        self._encoder_up.set(stats.encoder_up)
        for outcome, count in zip(OUTCOMES, (stats.encoder_encoded, stats.encoder_away, stats.encoder_refused), strict=True):
            self._grow(self._encoder_items.labels(outcome), f"encoder {outcome}", count)
        self._grow(self._encoder_bytes, "encoder bytes", stats.encoder_bytes)
        self._graphs.set(stats.graphs)

    def watch(self, engine: EngineClient | EngineGroup) -> None:
        """What is asked for when metrics are read."""
        self._work_age.set_function(lambda: engine.work_age_s)

    def _grow(self, counter: Counter, name: str, count: float) -> None:
        """The engine process has counted so far; what is new of it is added."""
        counter.inc(max(0, count - self._last.get(name, 0)))
        self._last[name] = count


def metrics_route(metrics: Metrics, engine: EngineClient | EngineGroup) -> Route:
    metrics.watch(engine)

    async def show(request: Request) -> Response:
        """All metrics. The engine is asked for its counts as of now, unless it does not answer soon."""
        with contextlib.suppress(ApiError, TimeoutError):
            async with asyncio.timeout(ENGINE_PATIENCE_S):
                await engine.fresh_stats()
        return Response(generate_latest(metrics.registry), headers={"Content-Type": TEXT_FORMAT})

    return Route("/metrics", show, methods=["GET"])
