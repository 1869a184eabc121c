"""Which device a model runs on, and in which numbers."""

import torch

from sightline.errors import ConfigError


def choose_device(name: str, rank: int = 0) -> torch.device:
    """Of ranks that hold a model together each has the GPU of its number, unless all are given one by name."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and rank:
        name = f"cuda:{rank}"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device is {name!r}, but must be 'auto', 'cpu', 'cuda' or 'cuda:N'.") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device is {name!r}, but only 'cpu' and 'cuda' are supported.")
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        raise ConfigError(f"device is {name!r}, but torch sees {torch.cuda.device_count()} CUDA devices.")
    return device


def use_device(device: torch.device) -> None:
    """From now on what this thread says of no device goes to this one: kernels of Triton, and collectives of plain numbers."""
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)


def choose_dtype(name: str, checkpoint: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        name = checkpoint if device.type == "cuda" else "float32"
    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}.get(name)
    if dtype is None:
        raise ConfigError(f"dtype is {name!r}, but must be auto, bfloat16, float16 or float32.")
    return dtype
