"""Registers the faster kernels of ops that this machine can run. Called once, before a model is made."""

import functools
import importlib
import importlib.util
import logging

import torch

from sightline.ops.external.compile_cache import keep_compiled

log = logging.getLogger("sightline.engine")

_TRITON = (
    "rotary",
    "merge_embeddings",
    "norms",
    "sampling",
    "sampling_by_score",
    "activations",
    "patch_positions",
    "position_grid",
    "pixels",
    "qkv",
    "paged_attention",
    "paged_chunks",
    "new_tokens",
    "pages",
    "tail",
    "fp8",
    "small_m",
    "causal_conv",
    "delta_rule",
    "experts",
    "latent_attention",
)


@functools.cache
def register_kernels() -> None:
    if importlib.util.find_spec("triton") is None:
        return
    from sightline.ops.triton import INTERPRETED

    if torch.cuda.is_available() or INTERPRETED:
        for module in _TRITON:
            importlib.import_module(f"sightline.ops.triton.{module}")
    if torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0) and _found("flash_attn.cute"):
        keep_compiled()
        importlib.import_module("sightline.ops.external.flash_attention_4")
        if torch.cuda.get_device_capability()[0] == 9:  # the tiles were measured on an H200
            _register_quack()


def _register_quack() -> None:
    try:
        importlib.import_module("sightline.ops.external.quack")
    except (ImportError, TypeError) as error:  # of another version; it also wants to lie in a folder called site-packages
        log.warning("Products of the tower go through cuBLAS, for quack cannot be used here: %s", error)


def _found(module: str) -> bool:
    """Whether it is installed. A package above it that is missing is an error to find_spec."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
