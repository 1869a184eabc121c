"""How each target figure of a running server is taken: a `sightline bench` command per key, and what of its record counts."""

from collections.abc import Mapping
from typing import Any

_ONE = "--image-quality 90 --max-concurrency 1 --ignore-eos --output-len 1 --input-len 30"
_LOAD = "--image-quality 90 --max-concurrency 32 --ignore-eos --input-len 128 --image-resolution 560x560"
_TALK = "multiturn --rounds 8 --conversations 3 --image-quality 90 --resolutions"

JOBS = {
    "ttft_ms.560": f"serve --image-resolution 560x560 --num-prompts 9 --num-warmups 3 {_ONE}",
    "ttft_ms.720p": f"serve --image-resolution 720p --num-prompts 9 --num-warmups 3 {_ONE}",
    "ttft_ms.1080p": f"serve --image-resolution 1080p --num-prompts 9 --num-warmups 3 {_ONE}",
    "ttft_ms.2k": f"serve --image-resolution 2k --num-prompts 9 --num-warmups 3 {_ONE}",
    "repeat_ttft_ms.1080p": f"serve --image-resolution 1080p --num-prompts 9 --num-warmups 1 --again {_ONE}",
    "round7_ttft_ms.720p": f"{_TALK} 720p",
    "round7_ttft_ms.1080p": f"{_TALK} 1080p",
    "round7_ttft_ms.2k": f"{_TALK} 2k",
    "ttft_ms.20x960x1280": f"serve --image-resolution 960x1280 --image-count 20 --num-prompts 3 --num-warmups 1 {_ONE}",
    "serve_rps.560": f"serve --num-prompts 256 --num-warmups 32 --output-len 1 {_LOAD}",
    "decode_tok_s.32": f"serve --num-prompts 64 --num-warmups 32 --output-len 256 {_LOAD}",
    "decode_tok_s.96": f"serve --num-prompts 192 --num-warmups 96 --output-len 256 {_LOAD.replace('32', '96', 1)}",
    "text_tok_s.128": "serve --dataset-name text --num-prompts 256 --num-warmups 128 --max-concurrency 128 --ignore-eos "
    "--input-len 512 --output-len 128 --image-quality 90",
    "ttft_ms.64x1080p": f"serve --image-resolution 1080p --image-count 64 --num-prompts 1 --num-warmups 0 {_ONE}",
    "probe_images.2k": "probe --resolutions 2k --counts 8 64 --image-quality 90 --output-len 1 --gpu-memory",
}

_SERVE_FIELDS = {
    "ttft_ms": "median_ttft_ms",
    "repeat_ttft_ms": "median_ttft_ms",
    "serve_rps": "request_throughput",
    "decode_tok_s": "output_throughput",
    "text_tok_s": "output_throughput",
}


def named(key: str, model: str) -> str:
    """The key of another model's figure: ttft_ms.560 of qwen2.5-vl-7b is ttft_ms.qwen2.5-vl-7b.560."""
    kind, _, size = key.partition(".")
    return f"{kind}.{model}.{size}" if model else key


class NoFigureError(Exception):
    """A run that gives no figure, because something in it failed; the message says what."""


def value_of(key: str, record: Mapping[str, Any]) -> float:
    """The figure in what a command kept."""
    name, _, size = key.partition(".")
    if record["kind"] == "serve":
        if record["failed"]:
            failure = record["failures"][0]
            raise NoFigureError(f"{record['failed']} requests failed; {failure['kind']}: {failure['example']}")
        return float(record[_SERVE_FIELDS[name]])
    if record["kind"] == "multiturn":
        errors = [found["error"] for found in record["rounds"] if found["error"]]
        if errors:
            raise NoFigureError(errors[0])
        return float(record["rounds"][-1]["ttft_ms"])
    if not record["largest"][size]:
        raise NoFigureError(record["probes"][0]["error"])
    return float(record["largest"][size])


def figures_of(key: str, record: Mapping[str, Any]) -> dict[str, float]:
    """The figure, and what else the record shows: by how much the GPU's memory grew from the fewest images to the most."""
    found = {key: value_of(key, record)}
    memory = [probe["gpu_memory_mb"] for probe in record.get("probes", ()) if probe["gpu_memory_mb"] is not None]
    if len(memory) > 1:
        found[f"probe_memory_growth_mb.{key.partition('.')[2]}"] = memory[-1] - memory[0]
    return found
