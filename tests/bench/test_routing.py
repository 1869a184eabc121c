"""`python -m benchmarks.routing`: its loads are what they are called, and the command measures real servers."""

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.__main__ import main as benchmark
from benchmarks.measure.routing import balanced_pictures, pictures, skewed_pictures


def test_loads() -> None:
    """Red when the balanced load has an engine that gets more than others, or the skewed one is not half of one image."""
    pool = pictures(64, 8)
    assert len({picture.data for picture in pool}) == 64 and {picture.owner for picture in pool} == set(range(8))
    owners = Counter(picture.owner for picture in itertools.islice(balanced_pictures(pool, 8), 800))
    assert set(owners.values()) == {100}
    shown = Counter(picture.data for picture in itertools.islice(skewed_pictures(pool, 0), 4000))
    assert 1900 < shown[pool[0].data] < 2100 and len(shown) == 64


@pytest.mark.slow
def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "routing.json"
    flags = ["--engines", "2", "--requests", "60", "--rounds", "1", "--sequences", "4", "--step-ms", "5", "--tokens", "4"]
    assert benchmark(["routing", *flags, "--json", str(kept)]) == 0
    found = json.loads(kept.read_text())
    assert found["request_ms"]["one_engine"] > 0
    assert found["added_ms"] == pytest.approx(found["request_ms"]["several"] - found["request_ms"]["one_engine"], abs=2e-3)
    assert [each["clients"] for each in found["repeats"]] == [2, 4, 16]
    for each in found["repeats"]:  # only who is spilled can miss its image, and finds it if the other engine has seen it
        assert 0.5 < each["at_owner"] <= each["known"] <= 1
    (balanced,), (skewed,) = found["skew"]["balanced_p99_ms"], found["skew"]["skewed_p99_ms"]
    assert found["skew"]["ratio"] == pytest.approx(skewed / balanced, abs=0.05) and balanced > 15  # three steps after the first
    assert benchmark(["routing", "--engines", "1"]) == 1
    assert "nothing to route" in capsys.readouterr().err
