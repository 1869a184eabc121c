"""The example in docs/structured-output.md runs as it is printed."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_example_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (source,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/structured-output.md").read_text(encoding="utf-8"), re.DOTALL)
    assert "assert" in source
    exec(compile(source, "docs/structured-output.md", "exec"), {})
