"""Every setting, once: a frozen dataclass tree with a default and a sentence per field. The command line is derived from it.

Flag names are the field names with dashes, as in `vllm serve` where the meaning is the same.
"""

import dataclasses
import functools
import json
import logging
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sightline.errors import ConfigError


def setting(default: Any, doc: str, show_default: bool = True, old_name: str | None = None) -> Any:
    """A field with a default and the sentence that `--help` shows, with or without the default.

    Flags and config files take `old_name`, from before a renaming, for one release more.
    """
    return dataclasses.field(default=default, metadata={"doc": doc, "show_default": show_default, "old_name": old_name})


@dataclass(frozen=True)
class ModelConfig:
    """Which model runs, where, and in which numbers."""

    model: str = setting("", "Checkpoint folder or Hub id; without one, the small model that comes with the package.")
    revision: str | None = setting(None, "Branch, tag or commit of a Hub model.")
    family_module: tuple[str, ...] = setting(
        (), "Python modules, files or folders with model families beyond those of the package (docs/add-a-model.md)."
    )
    load_format: Literal["safetensors", "dummy", "dummy-uniform"] = setting(
        "safetensors",
        "'dummy' fills a full-size model with random weights and reads no weight file; with 'dummy-uniform' tokens go to all "
        "experts alike, as in a trained model, where random weights send them to few.",
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = setting(
        "auto", "Numbers the model runs in; 'auto' is the checkpoint's on a GPU and float32 on a CPU."
    )
    quantization: Literal["none", "fp8"] | None = setting(
        None,
        "'fp8' keeps the language model's linear layers in 8-bit floats, 'none' none of them; by default as the checkpoint is.",
    )
    quantize_tower: bool = setting(False, "Whether fp8 takes the linear layers of the vision tower's blocks too.")
    device: str = setting("auto", "'cpu', 'cuda' or 'cuda:N'; 'auto' takes a GPU when there is one.")
    chat_template: str | None = setting(None, "File with a Jinja chat template to use instead of the checkpoint's.")
    max_model_len: int | None = setting(None, "Longest prompt plus answer in tokens; by default what the model was made for.")
    seed: int = setting(0, "Seed of dummy weights and of requests that name none.")


_HOST = re.compile(r"[\w-]+(\.[\w-]+)*|\[?[0-9a-fA-F:.]*:[0-9a-fA-F:.]*\]?")  # a name, an IPv4 or an IPv6 address
_HTTP_URL = re.compile(r"https?://[^/\s@?#]+(/[^\s?#]*)?")
_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/\sA-Z]+")
DEFAULT_MEDIA_COUNTS = '{"image": 128, "video": 8}'


@dataclass(frozen=True)
class MediaConfig:
    """What images and videos may be, and where they may come from."""

    max_image_mb: int = setting(64, "Largest encoded image in MB.")
    max_video_mb: int = setting(1024, "Largest encoded video in MB.")
    max_request_media_mb: int = setting(1024, "Most encoded images and videos of one request in MB, together.")
    limit_mm_per_prompt: str = setting(
        DEFAULT_MEDIA_COUNTS,
        "Most images and videos of one request, as JSON; a kind that is left out keeps its default, 0 refuses it.",
    )
    max_image_pixels: int = setting(
        150_000_000, "Images, and videos by the size of a frame, whose header names more pixels are refused before decoding."
    )
    min_image_side: int = setting(1, "Images and videos whose shorter side has fewer pixels are refused.")
    max_aspect_ratio: float = setting(
        200.0,
        "Images and videos whose longer side is more than so many times the shorter one are refused; models take 200 at most.",
    )
    max_image_decode_mpx: int = setting(
        550,
        "Most work to decode one image, in millions of pixels: for a JPEG times its scans, for other formats times their "
        "channels, WebP and AVIF twice and JPEG 2000 eight times.",
    )
    max_request_image_decode_mpx: int = setting(8000, "Most work to decode all images of one request, in the same unit.")
    max_video_frames: int = setting(250_000, "Videos with more packets are refused.")
    max_video_seconds: float = setting(3600.0, "Videos that play longer are refused.")
    max_video_gigapixels: int = setting(
        250,
        "Most work to decode one video, in billions of pixels of all frames up to the last one that the model sees. "
        "An hour of 1080p has 224.",
    )
    max_request_video_gigapixels: int = setting(500, "Most work to decode all videos of one request, in the same unit.")
    max_pdf_mb: int = setting(64, "Largest PDF in MB.")
    max_pdf_pages: int = setting(
        100, "PDFs with more pages are refused. Each page is an image of the request (limit_mm_per_prompt)."
    )
    max_pdf_seconds: int = setting(20, "Longest that reading the sizes of a PDF's pages, or rendering one page, may take.")
    pdf_dpi: int = setting(144, "Pixels per inch at which pages of PDFs are rendered.")
    max_request_frames: int = setting(4096, "Most frames that the model sees of all videos of one request together.")
    fetch_timeout_s: float = setting(20.0, "Time limit for fetching one http(s) image or video, redirects included.")
    allow_http: bool = setting(True, "Whether http(s) URLs are fetched at all.")
    allow_private_media: bool = setting(
        False, "Whether http(s) URLs may lead to addresses that are not on the public internet, such as localhost."
    )
    allowed_media_domains: tuple[str, ...] = setting((), "If given, http(s) media may come from these hosts only.")
    allowed_media_ports: tuple[int, ...] = setting(
        (80, 443, 8080, 8443), "Ports that http(s) URLs may name; none at all allows every port."
    )
    allowed_local_media_path: str | None = setting(
        "/",
        "Local files outside this folder are refused. By default every file may be read, but 'sightline serve' reads none.",
        show_default=False,
    )
    min_pixels: int | None = setting(None, "Overrides the checkpoint's smallest image area in pixels.")
    max_pixels: int | None = setting(None, "Overrides the checkpoint's largest image area in pixels.")

    def __post_init__(self) -> None:
        if isinstance(self.limit_mm_per_prompt, Mapping):  # as Python and YAML write it
            object.__setattr__(self, "limit_mm_per_prompt", json.dumps(dict(self.limit_mm_per_prompt)))
        read_media_counts(self.limit_mm_per_prompt)
        for name, least in (("max_pdf_pages", 1), ("max_pdf_seconds", 1), ("pdf_dpi", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}, but must be at least {least}.")
        object.__setattr__(self, "allowed_media_ports", tuple(self.allowed_media_ports))  # YAML has lists
        object.__setattr__(self, "allowed_media_domains", tuple(self.allowed_media_domains))
        for host in self.allowed_media_domains:
            if not _HOST.fullmatch(host):
                raise ConfigError(
                    f"allowed_media_domains has {host!r}, but must be host names or addresses, such as images.example.org."
                )

    @classmethod
    def for_server(cls, **given: Any) -> "MediaConfig":
        """Settings for requests that strangers write: no local files unless a folder is named."""
        return cls(**{"allowed_local_media_path": None, **given})


@functools.cache
def read_media_counts(text: str) -> dict[str, int]:
    """The most items per kind that limit_mm_per_prompt allows. Kinds that it does not name have their default."""
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict) or any(type(count) is not int or count < 0 for count in given.values()):
        raise ConfigError(f'limit_mm_per_prompt is {text!r}, but must be JSON like {{"image": 16, "video": 1}}.')
    counts: dict[str, int] = json.loads(DEFAULT_MEDIA_COUNTS)
    for kind in given:
        if kind not in counts:
            raise ConfigError(f"limit_mm_per_prompt names {kind!r}, but only {' and '.join(counts)} can be limited.")
    return {**counts, **given}


@dataclass(frozen=True)
class EngineConfig:
    """How much runs at once, and how much memory the caches may take."""

    max_num_seqs: int = setting(256, "Most sequences that run at once.")
    max_num_batched_tokens: int = setting(8192, "Most tokens computed in one step; longer prompts are cut into chunks.")
    target_itl_ms: float | None = setting(
        None,
        "Milliseconds that prompts and images of others may put between two tokens of an answer: prompts are cut into chunks "
        "that fit. Where more waits than such chunks can do, they grow. By default 25, or four steps of decoding if that is "
        "more, in a server, and no target in the library; 0 is none.",
    )
    max_patches_per_step: int = setting(
        65536, "Most image patches encoded in one step; a single larger image is encoded alone."
    )
    compact_patches: bool = setting(
        True, "Whether a still image is one frame for the tower, with folded weights, rather than the same frame repeated."
    )
    cpu_threads: int | None = setting(
        None,
        "Threads that compute the model on a CPU; by default as many as the processors, a cgroup's quota and the model's size "
        "make worth it, unless OMP_NUM_THREADS says how many.",
    )
    decode_threads: int | None = setting(
        None, "Threads that decode images side by side; by default one per processor, at most 16."
    )
    decode_memory_mb: int = setting(
        2048, "Memory in MB for images and videos that are being decoded on the CPU or wait to be encoded."
    )
    image_decoder: Literal["auto", "gpu", "cpu"] = setting(
        "auto",
        "Where JPEGs are decoded; 'auto' is the GPU if nvidia-nvimgcodec is there, whose pixels are those of the CPU but for "
        "rounding. JPEG 2000 and TIFF go there too, where pixels are the same; other formats are decoded on the CPU.",
    )
    tower_graphs: bool | None = setting(
        None,
        "Whether the vision tower runs as CUDA graphs on batches they pay for; by default where they are possible: on a GPU "
        "with flash-attn-4.",
    )
    max_tower_graph_patches: int = setting(
        8192,
        "Most patches of a batch that runs as a graph of the tower, from 64 to 8192; fewer take less memory and time to start.",
    )
    step_graphs: bool | None = setting(
        None, "Whether decoding and small chunks of prompts run as CUDA graphs; by default where they are possible, as above."
    )
    attention_backend: Literal["auto", "fa4", "sdpa", "triton"] = setting(
        "auto",
        "Whose kernels the language model's attention runs: those of flash-attn-4, of torch, or of Triton for single queries "
        "and of torch for longer chunks; by default the fastest for each. What cannot run is refused at the start.",
    )
    mm_attention_backend: Literal["auto", "fa4", "sdpa", "triton"] = setting(
        "auto", "The same for the vision tower, of which Triton has none."
    )
    tensor_parallel_size: int = setting(
        1, "GPUs that hold the model together, a process each, in which each has a part of every layer of the language model."
    )
    expert_parallel: bool = setting(
        False, "Whether each of these GPUs has some of the experts whole, in place of a part of every expert."
    )
    vision_parallel: Literal["auto", "data", "sequence", "tensor"] = setting(
        "auto",
        "How these GPUs share the vision tower's work: 'data' gives each some of the images, 'sequence' a part of the patches "
        "of each image, 'tensor' a part of each matrix; 'auto' mixes the first two by what they take.",
    )
    worker_process: bool = setting(
        False, "Whether what computes on the device runs in a process of its own, apart from the one that plans."
    )
    overlap: bool | None = setting(
        None, "Whether a step is prepared and launched while the one before it still computes; by default on a GPU."
    )
    async_encode: bool | None = setting(
        None,
        "Whether images are encoded on a stream of their own while others decode, whose next tokens then do not wait for them; "
        "by default on a GPU.",
        old_name="encode_aside",  # old name
    )
    share_repeated_frames: bool = setting(
        True, "Whether frames of a video that equal earlier ones of it share their embeddings, instead of being encoded again."
    )
    lookahead_patches: int = setting(16384, "Patches per step that may be encoded ahead for requests still in the queue.")
    page_size: int = setting(16, "Tokens per page of the key/value cache.")
    kv_cache_gb: float | None = setting(
        None, "Memory for keys and values in GB; by default 1 GB on a CPU, and what gpu_memory_utilization leaves on a GPU."
    )
    kv_cache_dtype: Literal["auto", "fp8", "fp8_e4m3"] = setting(
        "auto",
        "Numbers that keys and values are kept in: 'auto' is the model's; 'fp8' (or 'fp8_e4m3') is 8-bit floats with a scale "
        "per token and head, nearly twice the tokens in the same memory.",
    )
    gpu_memory_utilization: float = setting(0.9, "Share of the GPU's memory that model and caches may take together.")
    enable_prefix_caching: bool = setting(True, "Whether requests share keys and values of equal beginnings.")
    embedding_cache_gb: float | None = setting(
        None,
        "Memory for embedding rows of images and videos in GB; by default 0.5 GB on a CPU, 4 GB on a GPU. 0 takes as much, but "
        "keeps rows only while a request needs them.",
    )
    state_cache_gb: float | None = setting(
        None,
        "Memory for snapshots of recurrent states in GB, for models that have them; by default 0.25 GB on a CPU, 8 on a GPU.",
    )
    embedding_host_cache_gb: float = setting(0.0, "Host memory for rows that fell out of the embedding cache, in GB.")
    starvation_steps: int = setting(512, "A request that has waited this many steps goes before all others.")
    warm_up: bool | None = setting(
        None, "Whether a few requests run before the first real one, so that it need not wait for kernels; by default on a GPU."
    )

    @property
    def quantised_cache(self) -> bool:
        """Whether keys and values are 8-bit floats."""
        return self.kv_cache_dtype != "auto"

    def __post_init__(self) -> None:
        if self.tensor_parallel_size < 1:
            raise ConfigError(f"tensor_parallel_size is {self.tensor_parallel_size}, but must be at least 1.")
        if self.expert_parallel and self.tensor_parallel_size == 1:
            raise ConfigError("expert_parallel is on, but tensor_parallel_size is 1: there is nobody to share experts with.")
        if self.target_itl_ms is not None and not 0 <= self.target_itl_ms < math.inf:
            raise ConfigError(f"target_itl_ms is {self.target_itl_ms:g}, but must be at least 0.")


@dataclass(frozen=True)
class EncoderConfig:
    """Another server that runs the vision tower (docs/remote-encoder.md)."""

    encoder_url: str | None = setting(
        None, "Server started with --encoder-only that encodes images and videos, such as http://10.0.0.7:8000."
    )
    encoder_api_key: str | None = setting(None, "API key for that server.")
    encoder_fallback: Literal["local", "refuse"] = setting(
        "local", "While that server is away: 'local' encodes here, 'refuse' answers requests with new images with 503."
    )
    encoder_timeout_s: float = setting(30.0, "Longest wait for one image or video from that server.")
    encoder_connections: int = setting(8, "Images and videos that are asked of that server at once.")

    def __post_init__(self) -> None:
        if self.encoder_url is not None and not _HTTP_URL.fullmatch(self.encoder_url):
            raise ConfigError(f"encoder_url is {self.encoder_url!r}, but must be http://host:port or https://host.")
        if not self.encoder_timeout_s > 0:
            raise ConfigError(f"encoder_timeout_s is {self.encoder_timeout_s}, but must be above 0.")
        if self.encoder_connections < 1:
            raise ConfigError(f"encoder_connections is {self.encoder_connections}, but must be at least 1.")
        if self.encoder_api_key is not None and not re.fullmatch(r"[!-~]+", self.encoder_api_key):
            raise ConfigError("encoder_api_key has characters that a header cannot have, or none at all.")


@dataclass(frozen=True)
class ServerConfig:
    """Where the server listens, who may ask, and how much of it at once."""

    host: str = setting("127.0.0.1", "Address to listen on; 0.0.0.0 for all.")
    port: int = setting(8000, "Port to listen on; 0 takes a free one.")
    served_model_name: tuple[str, ...] = setting(
        (), "Names that requests may give the model; by default its Hub id, or the name of its folder."
    )
    accept_any_model_name: bool = setting(
        False, "Whether requests may give the model any name, as clients do that have one built in."
    )
    data_parallel_size: int = setting(
        1,
        "Engines behind the server, each with the whole model and GPUs of its own; requests go where their images already are.",
    )
    encoder_only: bool = setting(
        False,
        "Whether only the vision tower is loaded, to encode images and videos for servers that have this one as encoder_url.",
    )
    enable_mm_embeds: bool = setting(
        False, "Whether requests may bring embeddings in place of images, as parts of type 'image_embeds' (docs/serving.md)."
    )
    api_key: tuple[str, ...] = setting(
        (), "Keys of which requests must bring one, as 'Authorization: Bearer KEY' or 'x-api-key: KEY'."
    )
    api_key_file: str | None = setting(
        None,
        "File with such keys, one a line. Without key and file, SIGHTLINE_API_KEY of the environment is one.",
    )
    admin_api_key: str | None = setting(None, "Key for admin endpoints such as /flush_cache, which are off without one.")
    allowed_hosts: tuple[str, ...] = setting(
        (),
        "Names besides those of loopback by which the server may be called; '*' is all. By default all, but none on a loopback "
        "address without an api_key, where pages of other sites would reach it.",
    )
    allowed_origins: tuple[str, ...] = setting(
        (), "Origins of web pages that may call the server (CORS), such as https://pages.example; '*' is all."
    )
    share_caches_between_keys: bool = setting(
        False, "Whether requests with different API keys share cached prefixes and images, and so can tell what others sent."
    )
    max_request_mb: float = setting(256.0, "Largest request body in MB; what goes beyond is refused while it comes in.")
    max_inflight_mb: float = setting(4096.0, "Most MB that bodies and media of all unfinished requests hold together.")
    queue_timeout_s: float = setting(
        300.0, "How long a request waits for room within max_inflight_mb, its body unread, before it gets 429; 0: not at all."
    )
    max_inflight_requests: int = setting(4096, "Unfinished requests; beyond it, 429.")
    request_timeout_s: float = setting(600.0, "A request that takes longer is ended with an error.")
    body_timeout_s: float = setting(30.0, "Most seconds for a request's body to come in, beside one for each 100 kB of it.")
    header_timeout_s: float = setting(15.0, "Most seconds for the headers of a request to come in.")
    keep_alive_timeout_s: float = setting(
        75.0, "How long a connection is kept for its next request; proxies and pools keep theirs for 60 s."
    )
    read_timeout_s: float = setting(60.0, "A client that reads nothing of its waiting answer for so many seconds is cut off.")
    default_max_tokens: int = setting(4096, "Longest answer where neither the request nor the checkpoint names one.")
    max_output_tokens: int = setting(32768, "Longest answer that a request may ask for.")
    max_n: int = setting(64, "Most answers that a request may ask for.")
    ignore_unknown_fields: bool = setting(
        False,
        "Whether fields of requests that the server does not know are ignored, with a line in the log, instead of refused.",
    )
    max_known_uuids: int = setting(10_000, "Media that can be named by their uuid alone, per API key.")
    enable_response_timings: bool = setting(False, "Whether every response says what its stages took.")
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "How much standard error says; above 'info' the start is silent too. Lines for requests are apart from it."
    )
    log_requests: bool = setting(True, "Whether each request is logged as a line of JSON, without its content.")
    log_content: bool = setting(False, "Whether these lines have the messages and the answer as well.")
    max_restarts: int = setting(3, "How often in ten minutes a crashed engine is started again before the server gives up.")
    engine_timeout_s: float = setting(
        300.0,
        "An engine is killed and started again if its process gives no heartbeat for so long, or if a step or a stage of its "
        "start does not advance for so long; 0: never.",
    )
    restart_backoff_s: float = setting(1.0, "Pause before the first restart; it doubles each time.")
    drain_timeout_s: float = setting(30.0, "After SIGTERM, how long requests in progress may still take.")
    worker_threads: int = setting(4, "Threads that parse bodies, digest media and build prompts.")
    kept_media_mb: int = setting(
        256,
        "Encoded files that the API process and an engine process keep, each so many, so that those of a conversation are "
        "neither hashed nor sent to the engine again.",
    )

    @property
    def log_level_number(self) -> int:
        return logging.getLevelNamesMapping()[self.log_level.upper()]

    @property
    def kept_media_bytes(self) -> int:
        return 1_000_000 * self.kept_media_mb

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port is {self.port}, but must be between 0 and 65535.")
        if "" in self.api_key or self.admin_api_key == "":
            raise ConfigError("An API key is empty: whoever sends none would have it.")
        for host in self.allowed_hosts:
            if host != "*" and not _HOST.fullmatch(host):
                raise ConfigError(f"allowed_hosts has {host!r}, but must be names without ports, such as models.example.org.")
        for origin in self.allowed_origins:
            if not _ORIGIN.fullmatch(origin):
                raise ConfigError(
                    f"allowed_origins has {origin!r}, but must be '*' or origins as browsers send them, such as "
                    "https://pages.example."
                )
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and not isinstance(value, bool) and not value >= 0:
                raise ConfigError(f"{field.name} is {value}, but must be at least 0.")
        if self.data_parallel_size < 1:
            raise ConfigError(f"data_parallel_size is {self.data_parallel_size}, but must be at least 1.")
        if self.encoder_only and self.data_parallel_size > 1:
            raise ConfigError(f"encoder_only runs one engine, but data_parallel_size is {self.data_parallel_size}.")
        for name in ("max_request_mb", "max_inflight_mb", "max_inflight_requests", "worker_threads", "max_n"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}, but must be above 0.")


@dataclass(frozen=True)
class Config:
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    media: MediaConfig = dataclasses.field(default_factory=MediaConfig)
    engine: EngineConfig = dataclasses.field(default_factory=EngineConfig)
    encoder: EncoderConfig = dataclasses.field(default_factory=EncoderConfig)
    server: ServerConfig = dataclasses.field(default_factory=ServerConfig)

    def __post_init__(self) -> None:
        shared = self.engine.worker_process or self.engine.tensor_parallel_size > 1
        if self.server.encoder_only and (self.encoder.encoder_url is not None or shared):
            with_it = "encoder_url" if self.encoder.encoder_url is not None else "worker_process or tensor_parallel_size"
            raise ConfigError(f"encoder_only runs the tower in one process of its own; leave {with_it} out.")
        if self.encoder.encoder_url is not None and self.engine.vision_parallel == "tensor":
            raise ConfigError("encoder_url needs the tower whole, but vision_parallel is 'tensor'.")
