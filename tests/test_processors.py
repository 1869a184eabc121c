"""Processors that a cgroup has the time of, and threads that a model is worth."""

from pathlib import Path

import pytest

from sightline import processors
from sightline.errors import ConfigError
from sightline.processors import available_processors, cgroup_quota, choose_cpu_threads


def machine(root: Path, groups: str, **files: str) -> Path:
    """A machine's files: the groups of this process, and limits by path, in which two underscores stand for a slash."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/").replace("MAX", "cpu.max")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("groups", "files", "quota"),
    [
        ("0::/\n", {"MAX": "150000 100000\n"}, 1.5),
        ("0::/\n", {"MAX": "max 100000\n"}, None),
        ("0::/pod/own\n", {"pod__own__MAX": "max 100000\n", "pod__MAX": "400000 100000\n", "MAX": "800000 100000\n"}, 4.0),
        ("0::/gone\n", {"MAX": "200000 100000\n"}, 2.0),
        ("0::/\n", {}, None),
        ("", {}, None),
    ],
)
def test_quota_of_cgroups(tmp_path: Path, groups: str, files: dict[str, str], quota: float | None) -> None:
    """Red if a limit of a group further out is overlooked, or none is taken for one."""
    assert cgroup_quota(machine(tmp_path, groups, **files)) == quota


@pytest.mark.parametrize(("limit", "quota"), [("250000", 2.5), ("-1", None)])
def test_quota_of_old_cgroups(tmp_path: Path, limit: str, quota: float | None) -> None:
    root = machine(tmp_path, "5:memory:/pod\n4:cpu,cpuacct:/pod\n0::/\n")
    folder = root / "sys/fs/cgroup/cpu,cpuacct/pod"
    folder.mkdir(parents=True)
    (folder / "cpu.cfs_quota_us").write_text(f"{limit}\n")
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    assert cgroup_quota(root) == quota


def test_processors_are_no_more_than_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors.os, "sched_getaffinity", lambda _: set(range(8)))
    for quota, count in ((None, 8), (2.5, 3), (0.1, 1), (64.0, 8)):
        monkeypatch.setattr(processors, "cgroup_quota", lambda quota=quota: quota)
        assert available_processors() == count


def test_threads_by_the_size_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "available_processors", lambda: 4)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [choose_cpu_threads(None, 10**6 * size) for size in (4, 70, 100, 8000)] == [2, 2, 3, 4]
    assert choose_cpu_threads(7, 4) == 7
    monkeypatch.setattr(processors, "available_processors", lambda: 1)
    assert choose_cpu_threads(None, 10**10) == 1
    with pytest.raises(ConfigError, match=r"cpu_threads is 0, but must be at least 1\."):
        choose_cpu_threads(0, 4)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert choose_cpu_threads(None, 8 * 10**9) is None and choose_cpu_threads(2, 4) == 2
