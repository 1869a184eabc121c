"""sightline doctor: what it says is true of this machine, and what is broken is said, not crashed on."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import PIL
import pytest
import torch
from packaging.requirements import Requirement

import sightline
from sightline.cli import doctor_checks
from sightline.cli.main import main
from sightline.models.device import choose_device
from sightline.ops.dispatch import OPS

SECTIONS = ["machine", "torch", "attention", "operations", "decoders", "packages", "extras", "GPU packages"]


def doctor(capsys: pytest.CaptureFixture[str]) -> tuple[int, Any]:
    code = main(["doctor", "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_facts_are_those_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    code, report = doctor(capsys)
    assert code == 0 and report["problems"] == []
    assert list(report["sections"]) == SECTIONS
    facts = report["sections"]
    assert platform.python_version() in facts["machine"]["Python"]
    assert sightline.__version__ in facts["machine"]["sightline"]
    assert torch.__version__ in facts["torch"]["torch"]
    assert facts["torch"]["would run on"].startswith(choose_device("auto").type)
    assert set(facts["operations"]) == set(OPS)
    assert PIL.__version__ in facts["decoders"]["images"] and "JPEG" in facts["decoders"]["image formats"]
    assert facts["decoders"]["tried"].endswith("decoded")
    assert facts["packages"]["torch"].startswith(torch.__version__.split("+")[0])
    assert {"test", "dev"} <= set(facts["extras"])
    if not torch.cuda.is_available():
        assert any("no GPU" in warning or "driver" in warning for warning in report["warnings"])


def test_the_same_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert [line for line in said.splitlines() if line in SECTIONS] == SECTIONS
    assert said.endswith("All that is needed works.\n") and "scaled_dot_product_attention" in said


def test_a_kernel_is_named_where_it_would_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when the doctor looks at what is registered instead of at what would run."""
    op = OPS["rms_norm"]
    monkeypatch.setattr(op, "kernels", [])
    assert doctor_checks._shown(doctor_checks._used("rms_norm")) == doctor_checks.DEFINITION
    op.kernel("never", lambda *args, **kwargs: False)(op.definition)
    op.kernel("always", lambda *args, **kwargs: True)(op.definition)
    assert doctor_checks._shown(doctor_checks._used("rms_norm")) == "always"
    once = iter([True])
    monkeypatch.setattr(
        op, "kernels", [type(op.kernels[0])("sometimes", op.definition, lambda *args, **kwargs: next(once, False))]
    )
    shown = doctor_checks._shown(doctor_checks._used("rms_norm"))
    assert "sometimes (1 of " in shown and doctor_checks.DEFINITION in shown


def test_missing_and_old_packages_are_problems(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = [Requirement("no-such-package>=1.5"), Requirement("numpy>=999"), Requirement("msgspec>=0.1")]
    monkeypatch.setattr(doctor_checks, "_requirements", lambda: wanted)
    code, report = doctor(capsys)
    assert code == 1
    missing, old = report["problems"]
    assert missing == "The package no-such-package is not installed; pip install 'no-such-package>=1.5'."
    assert old.startswith("numpy is ") and old.endswith("but numpy>=999 is needed.")
    assert report["sections"]["packages"]["no-such-package"] == "missing"


def test_what_a_gpu_lacks_is_said_with_the_command_that_adds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when a package of the extra is not looked for, or is asked for on a GPU that has no use for it."""
    versions = {"flash-attn-4": None, "quack-kernels": "0.9.0", "nvidia-nvimgcodec-cu13": "0.9.0.20"}
    monkeypatch.setattr(doctor_checks, "_version", lambda name: versions.get(name, "1.0"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for capability, words in (((9, 0), ["flash-attn-4 is not installed", "quack-kernels is 0.9.0"]), ((8, 0), [])):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index, capability=capability: capability)
        report = doctor_checks.Report()
        assert doctor_checks.gpu_packages(report) == {name: version or "missing" for name, version in versions.items()}
        assert [warning[: len(begun)] for warning, begun in zip(report.warnings, words, strict=True)] == words
        command = "pip install 'sightline-vlm[gpu]' --constraint constraints-gpu.txt."
        assert all(warning.endswith(f"; {command}") for warning in report.warnings), report.warnings


def test_what_triton_needs_to_launch_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(doctor_checks.sysconfig, "get_path", lambda name: str(tmp_path))
    compiler, headers = doctor_checks._lacking_for_triton()
    assert compiler.endswith("; apt install gcc.") and headers.endswith(f"; apt install python3.{sys.version_info.minor}-dev.")
    (tmp_path / "Python.h").touch()
    (tmp_path / "clang").touch(0o755)
    assert doctor_checks._lacking_for_triton() == []


def test_a_group_of_packages_names_the_command_that_adds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, "_version", lambda name: None if name == "pyarrow" else "1.0")
    assert doctor_checks.extras(doctor_checks.Report())["eval"] == "without pyarrow; pip install 'sightline-vlm[eval]'"


def test_versions_other_than_the_tested_ones_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, "_tested", lambda: {"numpy": "0.0.1"})
    report = doctor_checks.Report()
    facts = doctor_checks.packages(report)
    assert facts["numpy"].endswith(" (tested with 0.0.1)") and "tested" not in facts["msgspec"]
    assert report.problems == []


def test_one_failure_leaves_the_other_findings(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(*arguments: Any) -> Any:
        raise OSError("libjpeg.so: cannot open shared object file")

    monkeypatch.setattr("sightline.media.decode.decode_image", broken)
    code, report = doctor(capsys)
    assert code == 1
    assert report["problems"] == ["The check of decoders failed: OSError: libjpeg.so: cannot open shared object file"]
    assert list(report["sections"]) == [name for name in SECTIONS if name != "decoders"]


def test_without_torch_it_says_so() -> None:
    code = "import sys; sys.modules['torch'] = None; from sightline.cli.main import main; sys.exit(main(['doctor', '--json']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert any("torch" in problem for problem in report["problems"])
    assert "machine" in report["sections"] and "packages" in report["sections"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine's GPU works")
def test_a_driver_whose_gpu_torch_cannot_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 570.11.01\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    report = doctor_checks.Report()
    assert doctor_checks.torch_and_gpu(report)["NVIDIA driver"] == "570.11.01"
    (warning,) = report.warnings
    assert warning.startswith("There is an NVIDIA driver (570.11.01), but torch")
