"""The table at the start: every part of the plan, and what is left alone."""

import logging

import pytest

from sightline.engine.messages import LoadProgress, MemoryReport, Ready
from sightline.server.startup_log import StartupLog

GB = 1024**3
ON_CPU = MemoryReport(weights=2 * GB, kv_cache=GB, kv_tokens=5000, embeddings=GB // 2, embedding_rows=700, host_embeddings=0)
ON_GPU = {"language": 3 * GB, "vision": 4 * GB, "graphs": GB, "margin": GB // 2, "others": GB, "total": 80 * GB}


def shown(memory: MemoryReport, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What stands behind each part, without spaces."""
    StartupLog().ready(
        Ready(device="cuda:0", dtype="bfloat16", max_model_len=4096, memory=memory, load_stages={"weights": 1.0, "graphs": 2.5})
    )
    rows = [line.rsplit("GiB", 1)[0] if "of the GPU" not in line else line for line in capsys.readouterr().err.splitlines()]
    return {row[:16].strip(): row[16:].split("  ")[0].strip() for row in rows if row.strip()}


def test_a_gpus_table_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    memory = MemoryReport(**{name: getattr(ON_CPU, name) for name in ON_CPU.__struct_fields__} | ON_GPU)
    assert memory.unplanned == 80 * GB - sum((2 * GB, GB, GB // 2, 3 * GB, 4 * GB, GB, GB // 2, GB))
    rows = shown(memory, capsys)
    for part, size in (("steps, language", "3.00"), ("steps, vision", "4.00"), ("CUDA graphs", "1.00"), ("others", "1.00")):
        assert rows[part].startswith(size), rows
    assert rows["left alone"].startswith("67.00"), rows


def test_where_the_time_went(capsys: pytest.CaptureFixture[str]) -> None:
    StartupLog().ready(Ready("cuda:0", "bfloat16", 4096, ON_CPU, {"weights": 1.04, "graphs": 2.5}))
    assert "ready on cuda:0 after 3.5 s (weights 1.0, graphs 2.5); prompt" in capsys.readouterr().err


def test_a_cpus_table_has_no_plan_for_steps(capsys: pytest.CaptureFixture[str]) -> None:
    rows = shown(ON_CPU, capsys)
    assert rows["weights"].startswith("2.00") and "CUDA graphs" not in rows and "left alone" not in rows


def test_a_higher_log_level_silences_the_start_but_not_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    """Red when --log-level does not reach what is said at the start, or silences what an operator should know."""
    log = StartupLog(logging.WARNING)
    log.progress(LoadProgress(done=1, total=2))
    log.ready(Ready("cuda:0", "bfloat16", 4096, ON_CPU, {"weights": 1.0}))
    log.say("Serving m.")
    assert capsys.readouterr().err == ""
    log.say("Whoever can reach it may ask.", logging.WARNING)
    assert capsys.readouterr().err == "Whoever can reach it may ask.\n"
