"""Flags of `sglang.launch_server`: those that mean what one of ours means are taken, for others the right one is named."""

import argparse
import dataclasses
import typing
from typing import Any

from sightline.cli.flags import kind_of
from sightline.config import EngineConfig, MediaConfig, ModelConfig, ServerConfig

# A flag of theirs, and the setting of ours that it is.
SETTINGS = {
    "--model-path": "model",
    "--context-length": "max_model_len",
    "--random-seed": "seed",
    "--max-running-requests": "max_num_seqs",
    "--chunked-prefill-size": "max_num_batched_tokens",
    "--limit-mm-data-per-request": "limit_mm_per_prompt",
    "--tp-size": "tensor_parallel_size",
    "--tp": "tensor_parallel_size",
    "--dp-size": "data_parallel_size",
    "--dp": "data_parallel_size",
}
# A switch of theirs, and the setting of ours that it turns off.
TURNED_OFF = {
    "--disable-radix-cache": "enable_prefix_caching",
    "--disable-overlap-schedule": "overlap",
    "--skip-server-warmup": "warm_up",
}
# Switches for what is always on here.
ALWAYS_ON = ("--enable-cache-report", "--enable-metrics", "--enable-multimodal")
# What to use instead of a flag that means something else or nothing here. Each continues "there is no option --x; ".
OTHERS = {
    "--mem-fraction-static": "use --gpu-memory-utilization, which counts the memory of running steps too",
    "--max-total-tokens": "use --kv-cache-gb, memory for keys and values in GB",
    "--max-prefill-tokens": "use --max-num-batched-tokens, the most tokens of a step",
    "--disable-cuda-graph": "use --no-step-graphs and --no-tower-graphs",
    "--enable-piecewise-cuda-graph": "use --step-graphs",
    "--piecewise-cuda-graph-max-tokens": "leave it out; graphs of steps go as far as they pay, --no-step-graphs turns them off",
    "--piecewise-cuda-graph-compiler": "leave it out, nothing is compiled by torch",
    "--cuda-graph-max-bs": "use --max-num-seqs; there are graphs for as many",
    "--disable-custom-all-reduce": "leave it out, GPUs of one model speak by NCCL",
    "--enable-torch-symm-mem": "leave it out, GPUs of one model speak by NCCL",
    "--log-requests-level": "use --log-content for messages and answers; without it the log has figures only",
    "--keep-mm-feature-on-device": "use --image-decoder gpu; what it decodes never leaves the GPU",
    "--mm-process-config": "use --min-pixels and --max-pixels",
    "--tokenizer-worker-num": "use --worker-threads",
    "--watchdog-timeout": "use --engine-timeout-s",
    "--trust-remote-code": "leave it out, a checkpoint's code is never run; --family-module adds model families",
    "--reasoning-parser": "leave it out, the model's chat template says how it thinks",
    "--tool-call-parser": "leave it out, the model's chat template says how it calls tools",
}


def add_sglang_flags(parser: argparse.ArgumentParser) -> None:
    """Theirs beside ours, which must have been added. `--help` shows ours alone."""
    hints: dict[str, Any] = {}
    for kind in (ModelConfig, EngineConfig, MediaConfig, ServerConfig):
        found = typing.get_type_hints(kind)
        hints |= {field.name: found[field.name] for field in dataclasses.fields(kind)}
    quiet: dict[str, Any] = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    for flag, setting in SETTINGS.items():
        parser.add_argument(flag, dest=setting, **quiet, **kind_of(hints[setting]))
    for flag, setting in TURNED_OFF.items():
        parser.add_argument(flag, dest=setting, action="store_false", **quiet)
    for flag in ALWAYS_ON:
        parser.add_argument(flag, dest="always_on", action="store_true", **quiet)
