"""How each target figure of a running server is taken: a `sightline bench` command per key, and what of its record counts."""

from collections.abc import Mapping
from typing import Any

_ONE = "--image-quality 90 --max-concurrency 1 --ignore-eos --output-len 1 --input-len 30"
_LOAD = "--image-quality 90 --max-concurrency 32 --ignore-eos --input-len 128 --image-resolution 560x560"
_CLIP = (
    "serve --dataset-name video --video-content screen --video-resolution 1080p --video-frames 120 --video-fps 2 "
    f"--num-prompts 3 --num-warmups 1 --return-timings {_ONE}"
)
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
    "screen_ttft_ms": "multiturn --rounds 12 --conversations 3 --image-content screen --image-format png --image-quality 90 "
    "--resolutions 1080p --output-len 16",
    "mixed_12rps": "serve --request-rate 12 --num-prompts 240 --num-warmups 12 --image-count 0-3 --image-resolution 300-1600 "
    "--image-quality 90 --input-len 128 --output-len 32-192 --ignore-eos",
    "same_image_rps.96": "serve --image-resolution 1080p --distinct-images 1 --num-prompts 96 --num-warmups 8 --output-len 16 "
    "--image-quality 90 --max-concurrency 32 --ignore-eos --input-len 30",
    "video_repeat.90": f"{_CLIP} --video-repeat 0.9",
    "video_repeat.0": _CLIP,
    "probe_images.2k": "probe --resolutions 2k --counts 8 64 --image-quality 90 --output-len 1 --gpu-memory",
}

# Fields of a record by figure: of the job of that name, or of all jobs of that kind.
_SERVE_FIELDS = {
    "ttft_ms": "median_ttft_ms",
    "repeat_ttft_ms": "median_ttft_ms",
    "serve_rps": "request_throughput",
    "same_image_rps": "request_throughput",
    "decode_tok_s": "output_throughput",
    "text_tok_s": "output_throughput",
}
_SEVERAL = {
    "mixed_12rps": {
        "mixed_12rps.itl_p99_ms": "p99_itl_ms",
        "mixed_12rps.ttft_p50_ms": "median_ttft_ms",
        "mixed_12rps.ttft_p99_ms": "p99_ttft_ms",
    },
    "video_repeat.90": {"video_ttft_ms.repeat90": "median_ttft_ms", "video_tower_ms.repeat90": "median_tower_ms"},
    "video_repeat.0": {"video_ttft_ms.repeat0": "median_ttft_ms", "video_tower_ms.repeat0": "median_tower_ms"},
}
_SCREEN_ROUNDS = (0, 11)
_SHARES = {  # figures that two jobs give together
    "video_repeat.tower_share": ("video_tower_ms.repeat90", "video_tower_ms.repeat0"),
    "video_repeat.ttft_share": ("video_ttft_ms.repeat90", "video_ttft_ms.repeat0"),
}


def named(key: str, model: str) -> str:
    """The key of another model's figure: ttft_ms.560 of qwen2.5-vl-7b is ttft_ms.qwen2.5-vl-7b.560."""
    kind, _, size = key.partition(".")
    return f"{kind}.{model}.{size}" if model else key


class NoFigureError(Exception):
    """A run that gives no figure, because something in it failed; the message says what."""


def value_of(key: str, record: Mapping[str, Any]) -> float:
    """The figure in what a command kept, of a job that gives one."""
    name, _, size = key.partition(".")
    _check(record)
    if record["kind"] == "serve":
        return float(record[_SERVE_FIELDS[name]])
    if record["kind"] == "multiturn":
        return float(record["rounds"][-1]["ttft_ms"])
    if not record["largest"][size]:
        raise NoFigureError(record["probes"][0]["error"])
    return float(record["largest"][size])


def _check(record: Mapping[str, Any]) -> None:
    if record["kind"] == "serve" and record["failed"]:
        failure = record["failures"][0]
        raise NoFigureError(f"{record['failed']} requests failed; {failure['kind']}: {failure['example']}")
    errors = [found["error"] for found in record.get("rounds", ()) if found["error"]]
    if errors:
        raise NoFigureError(errors[0])


def keys_of(job: str) -> list[str]:
    """The figures that a job gives."""
    if job == "screen_ttft_ms":
        return [f"screen_ttft_ms.{number}" for number in _SCREEN_ROUNDS]
    return list(_SEVERAL.get(job, (job,)))


def figures_of(job: str, record: Mapping[str, Any]) -> dict[str, float]:
    """What a job gives, and of a probe by how much the GPU's memory grew from the fewest images to the most."""
    if job == "screen_ttft_ms":
        _check(record)
        return {
            key: float(record["rounds"][number]["ttft_ms"]) for key, number in zip(keys_of(job), _SCREEN_ROUNDS, strict=True)
        }
    if job in _SEVERAL:
        _check(record)
        missing = [field for field in _SEVERAL[job].values() if record.get(field) is None]
        if missing:
            raise NoFigureError(f"the server does not tell {' and '.join(missing)}")
        return {key: float(record[field]) for key, field in _SEVERAL[job].items()}
    found = {job: value_of(job, record)}
    memory = [probe["gpu_memory_mb"] for probe in record.get("probes", ()) if probe["gpu_memory_mb"] is not None]
    if len(memory) > 1:
        found[f"probe_memory_growth_mb.{job.partition('.')[2]}"] = memory[-1] - memory[0]
    return found


def shares_of(values: Mapping[str, float]) -> dict[str, float]:
    """Figures that follow from two others, where both are there."""
    return {
        key: values[one] / values[other]
        for key, (one, other) in _SHARES.items()
        if one in values and values.get(other, 0.0) > 0
    }
