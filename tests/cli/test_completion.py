"""What `sightline completion` prints, run by the shells themselves: commands, flags, choices of a flag."""

import shutil
import subprocess

import pytest

from sightline.cli.main import main, make_parser

CASES = (
    ("sightline be", {"bench"}),
    ("sightline bench se", {"serve"}),
    ("sightline serve --tensor-para", {"--tensor-parallel-size"}),
    ("sightline serve --port 9 --dtype float", {"float16", "float32"}),
    ("sightline bench serve --dataset-name vi", {"video"}),
    ("sightline completion z", {"zsh"}),
)
ASK = {  # prints what completes the words
    "bash": 'COMP_WORDS=({words}); COMP_CWORD=$(({count} - 1)); _sightline; printf "%s\\n" "${{COMPREPLY[@]}}"',
    "zsh": 'emulate -L sh; COMP_WORDS=({words}); COMP_CWORD=$(({count} - 1)); _sightline; printf "%s\\n" "${{COMPREPLY[@]}}"',
    "fish": "complete -C '{words}'",
}


@pytest.mark.parametrize("shell", ASK)
def test_completions(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: object) -> None:
    """Red when a command, a flag or its choices are not offered where they belong, or the shell does not read the script."""
    if shutil.which(shell) is None:
        pytest.skip(f"this machine has no {shell}")
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for words, wanted in CASES:
        asked = ASK[shell].format(words=words, count=len(words.split()))
        done = subprocess.run([shell, "-c", f"{script}\n{asked}"], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        assert {line.split("\t")[0] for line in done.stdout.split("\n") if line} == wanted, words


def test_flags_of_other_engines_are_not_offered(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish"]) == 0
    said = capsys.readouterr().out
    assert "model-path" not in said and "-l max-model-len" in said


def test_alone_it_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out == make_parser().format_help()
