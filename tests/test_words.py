"""Words that only this project used and that gave way to the field's (docs/glossary.md has the few that stay)."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GONE = (
    r"GatheringRoom|gathering room",
    r"\w*[kK]ey_?[iI]tems\w*",
    r"WantedTokens|wanted tokens",
    r"\b(vision_rows|row_index|row_width|embed_rows)\b",
    r"patch_places|HEAD_PLACES",
    r"\bFEW_ROWS\b|\bfew_rows(?!(_steps)?\.json)|few-rows|products? of (a )?few rows",
    r"encode[_-]aside|encoded aside",
    r"\brehears\w*",
    r"\b[lL]edgers?\b",
    r"\btwins?\b",
    r"\b[lL]adder\w*|\bclimb\w*",
    r"\b[fF]orming\b",
    r"\b(un)?luck(y|ily)?\b",
    r"manieth",
    r"FileBooks|the books\b",
    r"\btap_follows\b|deepstack taps?\b",
    r"\brecord_all\b|graphs? (is|are|was|were) recorded",
    r"let_the_next_start|starts_early",
    r"class (Answer|Progress)\b",
)
FOLDERS = ("sightline", "benchmarks", "tests", "docs", "training")
# Word lists that pictures and prompts are drawn from are ordinary English.
LEFT_OUT = (
    "benchmarks/results",
    "sightline/data",
    "sightline/bench/load/texts.py",
    "sightline/evals/signs/words.py",
    "tests/test_words.py",
)


def texts() -> list[Path]:
    found = [path for folder in FOLDERS for kind in ("*.py", "*.md", "*.sh", "*.js") for path in (ROOT / folder).rglob(kind)]
    found += [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    return [path for path in found if not str(path.relative_to(ROOT)).startswith(LEFT_OUT)]


@pytest.mark.parametrize("word", GONE)
def test_the_word_is_gone(word: str) -> None:
    """Red where one comes back; lines that take an old flag for one release more say `# old name`."""
    pattern = re.compile(word)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in texts()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line) and "# old name" not in line
    ]
    assert not found, "\n".join(found)


def test_texts_are_found() -> None:
    assert len(texts()) > 500
