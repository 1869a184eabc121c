"""Imports point one way (docs/architecture.md), and a process that only admits requests needs no torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import sightline
from sightline.models.registry import registry

PACKAGE = Path(sightline.__file__).parent

# What each part may import, besides itself and the standard library. Every part may import BASE.
BASE = {
    "errors",
    "spec",
    "types",
    "config",
    "json_files",
    "timing",
    "host_memory",
    "processors",
    "sampling_params",
    "sampling_rules",
    "wire",
    "submission",
    "child_process",
}
ALLOWED = {
    "errors": set(),
    "spec": set(),
    "types": set(),
    "config": set(),
    "json_files": set(),
    "timing": set(),
    "host_memory": set(),
    "processors": set(),
    "sampling_params": set(),
    "sampling_rules": set(),
    "wire": set(),
    "submission": set(),
    "child_process": set(),
    "media": set(),
    "prompt": {"media"},
    "grammar": {"prompt"},
    "stream": {"prompt", "grammar"},
    "cache": set(),
    "ops": set(),
    "parallel": set(),
    "models": {"ops", "parallel", "prompt", "media"},
    "encoder": {"models", "ops", "parallel", "media"},
    "schedule": {"cache"},
    "worker": {"encoder", "models", "ops", "parallel"},
    "engine": {"worker", "parallel", "grammar", "encoder", "models", "ops", "prompt", "media", "schedule", "cache", "stream"},
    "llm": {"engine", "grammar", "models", "prompt", "media", "stream"},
    "bench": {"evals", "batch", "server", "engine", "models", "prompt", "media"},
    "evals": {"llm", "engine", "models", "prompt", "media", "stream", "data"},
    "server": {"engine", "models", "prompt", "media", "stream", "grammar"},
    "batch": {"server"},
    "ray": {"batch", "server", "cli", "engine", "models", "prompt", "media"},
    "__main__": {"cli"},
    "cli": {"batch", "server", "bench", "evals", "llm", "engine", "models", "prompt", "media", "ops", "parallel"},
}
WITHOUT_TORCH = (
    "errors",
    "spec",
    "types",
    "config",
    "json_files",
    "timing",
    "host_memory",
    "processors",
    "sampling_params",
    "sampling_rules",
    "sampling_rules",
    "wire",
    "submission",
    "child_process",
    "media",
    "prompt",
    "grammar",
    "stream",
    "cache",
    "schedule",
    "evals",
    "server",
    "batch",
)


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_parts(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path} has a relative import"
            names = [node.module] if node.module != "sightline" else [f"sightline.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("sightline.")}
    return found - {"__version__", "data"}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_import_direction(path: Path) -> None:
    part = part_of(path)
    if part in ("__init__", "data"):
        return
    assert part in ALLOWED, f"say in this test what '{part}' may import"
    wrong = imported_parts(path) - ALLOWED[part] - {part} - (BASE - {part} if part not in BASE else BASE)
    assert not wrong, f"{path} imports {sorted(wrong)}"


def modules_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.split()}


def test_torch_free_parts_load_no_torch() -> None:
    names = [
        ".".join(("sightline", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
        for path in PACKAGE.rglob("*.py")
        if part_of(path) in WITHOUT_TORCH
        or path.is_relative_to(PACKAGE / "bench" / "load")
        or path.is_relative_to(PACKAGE / "encoder" / "decoding")
        or path.is_relative_to(PACKAGE / "engine" / "remote")
    ]
    assert len(names) > 15
    assert not {"torch", "transformers", "torchvision"} & modules_after("import " + ", ".join(names))


def test_the_package_loads_neither_transformers_nor_torchvision() -> None:
    loaded = modules_after("import sightline; sightline.LLM; import sightline.cli.main, sightline.models.create")
    assert "torch" in loaded
    assert not {"transformers", "torchvision", "triton"} & loaded


def test_a_worker_knows_no_request() -> None:
    """What a worker is told are arrays and plain values: it could be on another machine."""
    for path in (PACKAGE / "worker").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "sightline.types":
                assert not {"Request", "SamplingParams", "Completion"} & {alias.name for alias in node.names}, path


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nobody_asks_for_a_family(path: Path) -> None:
    """Red if code outside a family's folder imports it or compares with its name. Benchmarks and evaluations may choose one."""
    folder = path.relative_to(PACKAGE)
    if folder.parts[0] in ("bench", "evals") or folder.is_relative_to("models/families"):
        return
    families = registry().families.values()
    names = {name for family in families for name in (family.name, family.model_type, family.processor_class)}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            assert not node.module.startswith("sightline.models.families."), f"{path} imports {node.module}"
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert node.value not in names, f"{path} has {node.value!r}"
