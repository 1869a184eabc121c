"""The benchmark of the API's share of a request: its requests are real, its figures add up."""

import json
from pathlib import Path

import msgspec
import pytest

from benchmarks.__main__ import main as benchmark
from benchmarks.measure.api_cost import IMAGE_BYTES, STAGES, make_body, measure
from sightline.config import MediaConfig, ModelConfig
from sightline.media.source import load_image
from sightline.models.files import read_model_files


# Red if images are equal (a cache would make them cheap) or far from the size that is reported.
def test_bodies() -> None:
    content = msgspec.json.decode(make_body(3))["messages"][0]["content"]
    refs = [load_image(part["image_url"]["url"], MediaConfig()) for part in content[:-1]]
    assert len({ref.digest for ref in refs}) == 3
    assert all(0.9 * IMAGE_BYTES < len(ref.data) < 1.1 * IMAGE_BYTES for ref in refs)


# Red if a stage is left out of the total, or the images do not reach the prompt.
def test_costs(tiny_checkpoints: dict[str, Path]) -> None:
    files = read_model_files(ModelConfig(model=str(tiny_checkpoints["qwen3-vl"])), MediaConfig(max_pixels=100_000))
    one, two = (measure(files, images, repeats=3) for images in (1, 2))
    for cost in (one, two):
        assert set(cost.stages) == set(STAGES) and all(value > 0 for value in cost.stages.values())
        assert cost.slowest >= cost.total > 0
        assert cost.total > 0.5 * sum(cost.stages.values())
    assert two.prompt_tokens > one.prompt_tokens + 50
    assert two.body_mb == pytest.approx(2 * one.body_mb, rel=0.1)


@pytest.mark.slow
def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "kept.json"
    over_http = ["--round-trips", "3", "--streams", "4", "--conversations", "1"]
    assert benchmark(["api", "--images", "2", "1", "--repeats", "1", *over_http, "--json", str(kept)]) == 0
    figures = json.loads(kept.read_text())
    assert [row["images"] for row in figures["rows"]] == [1, 2]
    assert figures["rows"][1]["total_ms_per_image"] == pytest.approx(figures["rows"][1]["total_ms"] / 2, abs=0.01)
    assert len(capsys.readouterr().out.splitlines()) == 4 + 4 + 2 + 2 + 1 + 2 * (2 + 12)
    trip = figures["round_trip"]
    for which in ("tenth", "median", "ninth_tenth"):
        assert 0 < trip["send_ms"][which] < trip["ttft_ms"][which] and 0 < trip["answer_ms"][which] <= trip["ttft_ms"][which]
    known = figures["known_images"]
    assert known["images"] == 8 and all(known[way]["ttft_ms"]["median"] > 0 for way in ("sent_each_time", "kept"))
    talk = figures["conversation"]["known"]
    assert [found["round"] for found in talk] == list(range(12)) and talk[11]["body_mb"] > 6 * talk[0]["body_mb"]
    assert all(found["known_ms"] > 0 and found["client_ms"] > 0 for found in talk)
    assert talk[11]["digest_ms"] < 0.5 * figures["conversation"]["hashed_again"][11]["digest_ms"]
    assert all(found["api_ms"] >= found["prompt_ms"] > 0 for found in talk)
    (streams,) = figures["streams"]
    assert streams["streams"] == 4 and streams["processor_us_per_token"] > 0
    assert benchmark(["api", "--images", "0"]) == 1
    assert "--images is 0, but must be at least 1." in capsys.readouterr().err
