"""Lays out what `./run docs` builds: the repository's Markdown files where they lie in it, and each file that they link to.

    python docs/site/stage.py FOLDER    FOLDER gets mkdocs.yml and pages/

So the links that hold in the repository hold in the site, and no page has to be written twice.
"""

import dataclasses
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
PAGES = ("*.md", "docs/**/*.md", "benchmarks/**/*.md", "training/*.md", "examples/*.md", "sightline/data/**/*.md")
SETTINGS = """Flags of `sightline serve`, `ask` and `eval`, options of a `--config` file, and, with underscores, keyword
arguments of `LLM` (but those of `ServerConfig`). A switch has a second form that begins with `--no-`."""
LINK = re.compile(r"(?:\]\(|src=\")([^)\s#\"]+)(?:#[^)]*)?[)\"]")


def linked(page: Path) -> set[Path]:
    """Files of the repository that a page links to or shows."""
    targets = LINK.findall(re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S))
    found = {(page.parent / target).resolve() for target in targets if not re.match(r"[a-z]+:", target)}
    return {file for file in found if file.is_file() and file.is_relative_to(ROOT)}


def stage(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    pages = {page for pattern in PAGES for page in ROOT.glob(pattern)}
    for file in sorted(pages | {target for page in pages for target in linked(page)}):
        copy = folder / "pages" / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    shutil.copyfile(ROOT / "docs" / "site" / "mkdocs.yml", folder / "mkdocs.yml")
    (folder / "pages" / "docs" / "site" / "settings.md").write_text(settings_page(), encoding="utf-8")


def settings_page() -> str:
    """Every setting as a table: flag, default, what `--help` says."""
    from sightline.config import (  # it needs no other package
        EncoderConfig,
        EngineConfig,
        MediaConfig,
        ModelConfig,
        ServerConfig,
    )

    lines = ["# Settings", "", SETTINGS]
    for kind in (ModelConfig, EngineConfig, EncoderConfig, MediaConfig, ServerConfig):
        lines += ["", f"## {kind.__name__}", "", kind.__doc__ or "", "", "| flag | default | |", "|---|---|---|"]
        for field in dataclasses.fields(kind):
            shown = "" if field.default in (None, "", ()) or not field.metadata["show_default"] else f"`{field.default}`"
            lines.append(f"| `--{field.name.replace('_', '-')}` | {shown} | {field.metadata['doc']} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    stage(Path(sys.argv[1]))
