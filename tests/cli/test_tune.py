"""`sightline tune`: what it says, writes and keeps, with times that are made up, and where there is nothing to measure on."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ops.tilings import cache
from sightline.cli import tune
from sightline.cli.main import main
from sightline.models.create import create_checkpoint
from sightline.ops.triton import small_m_tilings
from sightline.ops.triton.small_m_tilings import (
    H200,
    ROW_BUCKETS,
    GemmShape,
    Tiling,
    digest_of,
    linear_tiling,
    rule_tiling,
    shipped_choices,
)
from sightline.ops.tuning import small_m_search, small_m_timer
from sightline.ops.tuning.kept_tilings import Machine, file_of, read_kept
from sightline.ops.tuning.small_m_search import Matrix, TilingCost
from sightline.worker import tilings
from sightline.worker.tilings import fix_tilings

__all__ = ["cache"]
CPU = torch.device("cpu")


class PlayedTimer:
    """The library and the rule take 10 µs, everything else 12; of `out` with 32 rows the library takes 8."""

    measured: list[str]

    def __init__(self, matrix: Matrix, device: torch.device, dtype: torch.dtype, repeats: int) -> None:
        self._matrix = matrix
        assert (device.type, dtype, repeats) == ("cuda", torch.bfloat16, 3)
        self.measured.append(matrix.name)

    def measure(self, rows: int, tiling: Tiling | None) -> TilingCost:
        matrix = self._matrix
        rule = rule_tiling(matrix.at(max(16, rows)), H200)
        time = 10.0 if tiling in (rule, None) else 12.0
        if matrix.name == "out" and rows == 32 and tiling is None:
            time = 8.0
        return TilingCost(matrix, rows, tiling, time, 1.0, 1e-3)


@pytest.fixture
def gpu(cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """As on a machine with the GPU; names of matrices that are measured."""
    measured: list[str] = []
    monkeypatch.setattr(PlayedTimer, "measured", measured, raising=False)
    monkeypatch.setattr(tune, "_why_not", lambda device: "")
    monkeypatch.setattr("sightline.models.device.choose_device", lambda name, rank=0: torch.device("cuda"))
    monkeypatch.setattr(small_m_tilings, "hopper_chip", lambda device: H200)
    monkeypatch.setattr(tilings, "hopper_chip", lambda device: H200)
    monkeypatch.setattr(small_m_timer, "MatrixTimer", PlayedTimer)
    return measured


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Of shapes that the package has no data for."""
    create_checkpoint(tmp_path / "4b", "qwen3-vl", "4b", weights=False)
    return tmp_path / "4b"


def run(model: Path, *flags: Any) -> int:
    return main(["tune", str(model), "--repeats", "3", *map(str, flags)])


# Red if the table is not that of what was measured, something is kept that is no better, or a start uses other choices.
def test_what_is_better_is_kept(gpu: list[str], model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(model, "--json", tmp_path / "measured.json") == 0
    out = GemmShape(32, 2560, 4096)
    assert rule_tiling(out, H200) is not None and read_kept(Machine.of(H200), H200).choices == {out: None}
    said = capsys.readouterr().out
    (row,) = [line for line in said.splitlines() if line.endswith(" *")]
    assert row.split()[:6] == ["out", "4096", "to", "2560", "16-bit", "32"] and "library" in row and "20.0% *" in row
    rows = [line for line in said.splitlines() if " to " in line]
    assert len(rows) == 15 and gpu == ["qkv", "out", "gate_up", "down", "lm_head"]
    digest = digest_of({**shipped_choices("NVIDIA H200"), out: None})
    assert f"hash {digest}." in said and str(file_of(Machine.of(H200))) in said
    kept = json.loads((tmp_path / "measured.json").read_text())
    assert kept["hash"] == digest and len(kept["measured"]) == 15
    assert [one["gains"] for one in kept["measured"]].count(True) == 1
    facts = fix_tilings(CPU)
    assert facts is not None and facts.digest == digest and linear_tiling(32, 2560, 4096) is None


# Red if what is known, by the package or from before, is measured again.
def test_what_is_known_is_left_alone(gpu: list[str], model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(model) == 0 and "known: " not in capsys.readouterr().out
    assert run(model) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "known: " in line]
    assert line.split()[:6] == ["out", "4096", "to", "2560", "16-bit", "32"]
    create_checkpoint(tmp_path / "2b", "qwen3-vl", "2b", weights=False)
    assert run(tmp_path / "2b") == 0
    shipped = {(shape.width, shape.size, shape.gated) for shape in shipped_choices("NVIDIA H200")}
    known = [line.split() for line in capsys.readouterr().out.splitlines() if "known: " in line]
    assert known and all((int(words[3]), int(words[1]), words[0] == "gate_up") in shipped for words in known)


# Red if ranks or 8-bit weights are not taken into account.
def test_shares_and_formats(
    gpu: list[str], model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sightline.models.quantise.has_scaled_mm", lambda device: True)
    assert run(model, "--tensor-parallel-size", 2, "--quantization", "fp8") == 0
    said = capsys.readouterr().out
    assert "2048 to 2560  fp8 " in said and "2560 to 75968  16-bit" in said


# Red if a model that runs out of the GPU's memory loses what was measured before, or ends with a traceback.
def test_memory_that_runs_out(
    gpu: list[str], model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(timer: PlayedTimer, rows: int, tiling: Tiling | None) -> TilingCost:
        raise torch.OutOfMemoryError

    usual = PlayedTimer.measure
    monkeypatch.setattr(
        PlayedTimer, "measure", lambda timer, *given: (full if timer._matrix.name == "down" else usual)(timer, *given)
    )
    assert run(model) == 1
    assert "too little memory free for down, 9728 to 2560" in capsys.readouterr().err
    assert len(read_kept(Machine.of(H200), H200).choices) == 1


# Red if there is no sentence, or it ends as if something had been measured.
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("flags", [[], ["--device", "cpu"], ["--device", "cuda"]])
def test_without_a_gpu(cache: Path, capsys: pytest.CaptureFixture[str], flags: list[str]) -> None:
    assert main(["tune", "no-such-model", *flags]) == 2
    said = capsys.readouterr()
    assert not said.out and not cache.exists()
    assert said.err == "sightline: tune measures kernels on an NVIDIA GPU, and torch sees none on this machine.\n"


# Red if a GPU that the kernels are not for is measured, or what is missing is not said.
@pytest.mark.parametrize(
    ("device", "triton", "chip", "said"),
    [
        ("cuda", True, None, "compute capability 9, but NVIDIA B200 has 10.0: it runs the library's."),
        ("cuda", False, H200, "Triton, which is not installed."),
        ("cpu", True, H200, "but --device is 'cpu'."),
    ],
)
def test_a_machine_that_does_not_fit(
    device: str, triton: bool, chip: Any, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "NVIDIA B200")
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (10, 0))
    monkeypatch.setattr("sightline.models.device.choose_device", lambda name, rank=0: torch.device(name))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if triton else None)
    monkeypatch.setattr(small_m_tilings, "hopper_chip", lambda device: chip)
    assert main(["tune", "model", "--device", device]) == 2
    assert capsys.readouterr().err.endswith(f"{said}\n")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--repeats", "0"], "--repeats is 0, but must be at least 1."),
        (["--tensor-parallel-size", "0"], "tensor_parallel_size is 0"),
        (["--json", "/no/such/folder/x.json"], "there is no such folder"),
    ],
)
def test_mistakes_are_said(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "model", *flags]) == 1
    assert said in capsys.readouterr().err


# Red if numbers that the kernels do not take are measured.
def test_float32_is_refused(gpu: list[str], model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(model, "--dtype", "float32") == 1
    assert "--dtype is 'float32'" in capsys.readouterr().err and not gpu


# Red if nothing can be measured on a GPU, or a start there has other choices than those that were told.
@pytest.mark.gpu
def test_on_a_gpu(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    create_checkpoint(tmp_path / "0.8b", "qwen3.5", "0.8b", weights=False)
    for grid in ("_GRID", "_GRID_WEIGHT_LEFT"):
        monkeypatch.setattr(small_m_search, grid, getattr(small_m_search, grid)[:3])
    monkeypatch.setattr(small_m_search, "_ROWS_OF", {bucket: (bucket,) for bucket in ROW_BUCKETS})
    report = tmp_path / "measured.json"
    flags = ["--dtype", "bfloat16", "--quantization", "fp8", "--repeats", "2", "--json", str(report)]
    assert main(["tune", str(tmp_path / "0.8b"), *flags]) == 0
    kept = json.loads(report.read_text())
    assert {one["matrix"]["form"] for one in kept["measured"]} == {"16-bit", "fp8"}
    assert kept["machine"]["driver"] != "unknown" and Path(kept["file"]).is_file()
    facts = fix_tilings(torch.device("cuda"))
    assert facts is not None and facts.digest == kept["hash"] and not facts.problem
