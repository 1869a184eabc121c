"""From a checkpoint's files to an engine: the device, the numbers it runs in, weights, memory."""

from collections.abc import Callable

import torch

from sightline.config import Config
from sightline.engine.engine import Engine
from sightline.engine.warm_up import warm_up
from sightline.errors import ConfigError
from sightline.models.files import ModelFiles
from sightline.models.load import dummy_model, load_model
from sightline.models.quantise import Quantiser
from sightline.timing import StageClock

Progress = Callable[[int, int], None]  # parameters loaded, of how many


def load_engine(config: Config, files: ModelFiles, progress: Progress | None = None, clock: StageClock | None = None) -> Engine:
    """`clock` is told how long each part of it took."""
    chosen, clock = config.model, clock or StageClock()
    device = choose_device(chosen.device)
    dtype = choose_dtype(chosen.dtype, files.spec.dtype, device)
    quantiser = Quantiser(chosen.quantization, chosen.quantize_tower, files.spec.fp8)
    with clock.stage("weights"):
        if chosen.load_format == "dummy":
            model = dummy_model(files.spec, device, dtype, files.max_model_len, chosen.seed, quantiser)
        else:
            model = load_model(files.spec, files.folder, device, dtype, files.max_model_len, progress, quantiser)
    with clock.stage("memory"):
        engine = Engine(
            model,
            files.processor,
            files.tokenizer,
            config.engine,
            files.max_model_len,
            chosen.seed,
            config.media.max_image_pixels,
        )
    if config.engine.warm_up or (config.engine.warm_up is None and device.type == "cuda"):
        warm_up(engine, files, clock)
    return engine


def choose_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device is {name!r}, but must be 'auto', 'cpu', 'cuda' or 'cuda:N'.") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device is {name!r}, but only 'cpu' and 'cuda' are supported.")
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        raise ConfigError(f"device is {name!r}, but torch sees {torch.cuda.device_count()} CUDA devices.")
    return device


def choose_dtype(name: str, checkpoint: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        name = checkpoint if device.type == "cuda" else "float32"
    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}.get(name)
    if dtype is None:
        raise ConfigError(f"dtype is {name!r}, but must be auto, bfloat16, float16 or float32.")
    return dtype
