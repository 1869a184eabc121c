"""Libraries whose kernels are used where they can be."""

import importlib
import logging
from typing import Any

import pytest

from sightline.ops import kernels


@pytest.mark.parametrize("error", [ImportError("no module named quack.gemm"), TypeError("no semantic key")])
def test_a_library_of_another_version_is_named_and_left_out(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Red when the server would not start with it, or would be slower without a word."""

    def fail(name: str, *_: Any) -> None:
        assert name == "sightline.ops.external.quack"
        raise error

    monkeypatch.setattr(importlib, "import_module", fail)
    with caplog.at_level(logging.WARNING):
        kernels._register_quack()
    assert str(error) in caplog.text and "cuBLAS" in caplog.text
