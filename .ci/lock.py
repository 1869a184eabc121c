"""Writes requirements/demo.lock and test.lock: the pins of constraints.txt with the hashes of their files, from an index.

    python .ci/lock.py --index-url URL           a "simple" index, as pip's option of that name takes it
    python .ci/lock.py --index-url URL --docs    docs.lock instead, from an environment that has the docs extra and packaging
    python .ci/lock.py --index-url URL --ray     requirements/ray.lock, with a Python that has the extra `ray` as well

For each command of ./run one list: what it installs, with all that this pulls in, found by following the packages that are
installed where this runs, which must be those that are pinned. Each release has the hashes of all its files, so that a list
serves every Python and platform that the release serves. torch is in neither: builds for the CPU are on an index of their own.

ray.lock has what the extra `ray` brings beside the pins, in the versions that are installed; tests/scale_out installs it.
"""

import argparse
import html
import re
import sys
import tomllib
import urllib.request
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "requirements"
PYTHONS = ((3, 11), (3, 12), (3, 13))
PLATFORMS = [*(f"manylinux_2_{minor}_x86_64" for minor in range(36, 4, -1)), "manylinux2014_x86_64", "manylinux1_x86_64"]
NOT_HERE = ("torch", "sightline-vlm")
ALONE = ("setuptools",)  # needed to build the project, and by nobody else
WITHOUT_DEPENDENCIES = ("torchvision",)  # of the tests, see constraints.txt
HEAD = """# What ./run {command} installs{but}, each file by its SHA-256. Written by .ci/lock.py{origin}.
"""
_HEADS = {"docs": ("", ""), "ray": (" (tests/ray) beside test.lock", "")}


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def closure(requirements: list[Requirement]) -> dict[str, str]:
    """Names of all packages that come along, with the condition under which ours asks for them, if there is one."""
    found: dict[str, str] = {}
    queue = [(requirement, str(requirement.marker or "")) for requirement in requirements]
    seen: set[tuple[str, str]] = set()
    while queue:
        requirement, condition = queue.pop()
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras}:
            if (name, extra) in seen and (not found.get(name) or condition):
                continue
            seen.add((name, extra))
            found[name] = condition
            for text in metadata.requires(name) or []:
                child = Requirement(text)
                if child.marker is None or child.marker.evaluate({"extra": extra}):
                    queue.append((child, condition))
    return found


def files_of(name: str, version: str, index: str) -> dict[str, str]:
    """File name → SHA-256 of a release."""
    with urllib.request.urlopen(f"{index}/{name}/", timeout=60) as answer:
        page = answer.read().decode()
    found = {}
    for link, file in re.findall(r'<a[^>]*href="([^"]+)"[^>]*>([^<]+)</a>', page):
        file = html.unescape(file.strip())
        digest = re.search(r"#sha256=([0-9a-f]{64})", link)
        if digest and _version_of(file, name) == version:
            found[file] = digest[1]
    return found


def _version_of(file: str, name: str) -> str:
    if file.endswith(".whl"):
        return file.split("-")[1]
    own = re.fullmatch(rf"{re.escape(name).replace('-', '[-_.]')}-(.+?)\.(?:tar\.gz|zip)", file, re.IGNORECASE)
    return own[1] if own else ""


def without_wheel(files: dict[str, str]) -> list[str]:
    """Versions of Python for which a release has no wheel on Linux."""
    tags = {tag for file in files if file.endswith(".whl") for tag in parse_wheel_filename(file)[3]}
    lacking = []
    for version in PYTHONS:
        wanted = {*cpython_tags(version, platforms=PLATFORMS), *compatible_tags(version, platforms=PLATFORMS)}
        if not wanted & tags:
            lacking.append(".".join(map(str, version)))
    return lacking


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index-url", required=True)
    parser.add_argument("--docs", action="store_true")
    parser.add_argument("--ray", action="store_true")
    arguments = parser.parse_args()
    index = arguments.index_url.rstrip("/")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    if arguments.docs or arguments.ray:
        extra = "docs" if arguments.docs else "ray"
        names = closure([Requirement(text) for text in project["optional-dependencies"][extra]])
        if arguments.ray:
            there = {line.split("==")[0] for line in (FOLDER / "test.lock").read_text().splitlines() if "==" in line}
            names = {name: condition for name, condition in names.items() if name not in there}
        return write({extra: names}, {name: metadata.version(name) for name in names}, index)
    own = [Requirement(text) for text in (*ALONE, *project["dependencies"])]
    tests = [Requirement(text) for text in project["optional-dependencies"]["test"]]
    both = {"demo": closure(own), "test": closure([*own, *tests]) | dict.fromkeys(WITHOUT_DEPENDENCIES, "")}
    return write(both, pins(), index)


def write(lists: dict[str, dict[str, str]], pinned: dict[str, str], index: str) -> int:
    wanted = sorted({name for names in lists.values() for name in names} - set(NOT_HERE))
    files = {name: files_of(name, pinned[name], index) for name in wanted}
    FOLDER.mkdir(exist_ok=True)
    for command, names in lists.items():
        but, origin = _HEADS.get(command, (" but for torch", " from constraints.txt"))
        lines = [HEAD.format(command=command, but=but, origin=origin)]
        for name in sorted(set(names) - set(NOT_HERE)):
            condition = f" ; {names[name]}" if names[name] else ""
            hashes = "".join(f" \\\n    --hash=sha256:{digest}" for digest in sorted(files[name].values()))
            lines.append(f"{name}=={pinned[name]}{condition}{hashes}\n")
        (FOLDER / f"{command}.lock").write_text("".join(lines), encoding="utf-8")
    empty = [name for name, own_files in files.items() if not own_files]
    for name in empty:
        print(f"the index has no file of {name} {pinned[name]}", file=sys.stderr)
    for name, own_files in files.items():
        if lacking := without_wheel(own_files):
            print(f"{name} {pinned[name]} has no wheel for Python {', '.join(lacking)} on Linux", file=sys.stderr)
    return 1 if empty else 0


if __name__ == "__main__":
    sys.exit(main())
