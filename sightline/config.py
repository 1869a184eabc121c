"""Every setting, once: a frozen dataclass tree with a default and a sentence per field. The command line is derived from it.

Flag names are the field names with dashes, as in `vllm serve` where the meaning is the same.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal


def setting(default: Any, doc: str) -> Any:
    """A field with a default and the sentence that `--help` shows."""
    return dataclasses.field(default=default, metadata={"doc": doc})


@dataclass(frozen=True)
class ModelConfig:
    """Which model runs, where, and in which numbers."""

    model: str = setting("", "Checkpoint folder or Hub id; without one, the small model that comes with the package.")
    revision: str | None = setting(None, "Branch, tag or commit of a Hub model.")
    load_format: Literal["safetensors", "dummy"] = setting(
        "safetensors", "'dummy' fills a full-size model with random weights and reads no weight file."
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = setting(
        "auto", "Numbers the model runs in; 'auto' is the checkpoint's on a GPU and float32 on a CPU."
    )
    device: str = setting("auto", "'cpu', 'cuda' or 'cuda:N'; 'auto' takes a GPU when there is one.")
    max_model_len: int | None = setting(None, "Longest prompt plus answer in tokens; by default what the model was made for.")
    seed: int = setting(0, "Seed of dummy weights and of requests that name none.")


@dataclass(frozen=True)
class MediaConfig:
    """What images and videos may be, and where they may come from."""

    max_image_mb: int = setting(64, "Largest encoded image in MB.")
    max_video_mb: int = setting(1024, "Largest encoded video in MB.")
    max_image_pixels: int = setting(150_000_000, "Images whose header names more pixels are refused before decoding.")
    max_video_frames: int = setting(100_000, "Videos with more packets are refused.")
    fetch_timeout_s: float = setting(20.0, "Time limit for fetching one http(s) image or video.")
    allowed_media_domains: tuple[str, ...] = setting((), "If given, http(s) media may come from these hosts only.")
    allow_http: bool = setting(True, "Whether http(s) URLs are fetched at all.")
    allowed_local_media_path: str | None = setting(
        "/", "Local files outside this folder are refused; None refuses all. The library default allows every file."
    )
    min_pixels: int | None = setting(None, "Overrides the checkpoint's smallest image area in pixels.")
    max_pixels: int | None = setting(None, "Overrides the checkpoint's largest image area in pixels.")


@dataclass(frozen=True)
class EngineConfig:
    """How much runs at once, and how much memory the caches may take."""

    max_num_seqs: int = setting(256, "Most sequences that run at once.")
    max_num_batched_tokens: int = setting(8192, "Most tokens computed in one step; longer prompts are cut into chunks.")
    max_patches_per_step: int = setting(
        65536, "Most image patches encoded in one step; a single larger image is encoded alone."
    )
    lookahead_patches: int = setting(16384, "Patches per step that may be encoded ahead for requests still in the queue.")
    page_size: int = setting(16, "Tokens per page of the key/value cache.")
    kv_cache_gb: float | None = setting(
        None, "Memory for keys and values in GB; by default 1 GB on a CPU, and what gpu_memory_utilization leaves on a GPU."
    )
    gpu_memory_utilization: float = setting(0.9, "Share of the GPU's memory that model and caches may take together.")
    enable_prefix_caching: bool = setting(True, "Whether requests share keys and values of equal beginnings.")
    embedding_cache_gb: float | None = setting(
        None, "Memory for embedding rows of images and videos in GB; by default 0.5 GB on a CPU, 4 GB on a GPU."
    )
    embedding_host_cache_gb: float = setting(0.0, "Host memory for rows that fell out of the embedding cache, in GB.")
    starvation_steps: int = setting(512, "A request that has waited this many steps goes before all others.")


@dataclass(frozen=True)
class Config:
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    media: MediaConfig = dataclasses.field(default_factory=MediaConfig)
    engine: EngineConfig = dataclasses.field(default_factory=EngineConfig)
