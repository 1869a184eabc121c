"""The command as a user runs it: real processes, exit codes, one sentence per mistake and no traceback."""

import json
import shlex
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest
from PIL import Image

from sightline.cli import demo
from sightline.cli.main import main, make_parser


def sightline(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sightline.cli.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_demo() -> None:
    """Every bundled picture is answered, and rightly. Red when weights, preprocessing or pictures change for the worse."""
    done = sightline("demo")
    assert done.returncode == 0, done.stdout + done.stderr
    asked = json.loads((resources.files("sightline.data") / "demo" / "questions.json").read_text())
    assert len(asked) >= 6 and any(one["videos"] for one in asked) and any(len(one["images"]) == 2 for one in asked)
    for one in asked:
        assert f"question  {one['question']}\nanswer    {one['answer']}\n" in done.stdout
    said, commands = done.stdout.split("What to type next:\n")
    assert "knows nothing else" in said
    for line in commands.splitlines()[::2]:
        program, *words = shlex.split(line)
        assert program.startswith("python") and words[:2] == ["-m", "sightline"]
        make_parser().parse(words[2:])


def test_the_command_is_named_as_it_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """./run starts the script of .venv, which no shell finds by its name."""
    script = tmp_path / ".venv" / "bin" / "sightline"
    script.parent.mkdir(parents=True)
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(script), "demo"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    assert demo._program() == ".venv/bin/sightline"
    monkeypatch.setenv("PATH", str(script.parent))
    assert demo._program() == "sightline"


def test_demo_of_another_picture(tmp_path: Path) -> None:
    """A picture of one's own is answered without judgement."""
    picture = tmp_path / "grey.png"
    Image.new("RGB", (64, 64), (128, 128, 128)).save(picture)
    done = sightline("demo", "--image", picture, "--question", "What does it say?")
    assert done.returncode == 0 and f"image     {picture}" in done.stdout and "answer" in done.stdout


@pytest.mark.parametrize(
    "family",
    [
        "qwen3.5",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("qwen3-vl", "qwen2.5-vl", "glm-4.1v", "glm-4.6v-flash")),
    ],
)
def test_new_info_ask(tmp_path: Path, family: str) -> None:
    folder, image = tmp_path / "model", tmp_path / "image.png"
    Image.new("RGB", (90, 60), (200, 30, 30)).save(image)
    assert sightline("model", "new", folder, "--family", family).returncode == 0
    assert family in sightline("model", "info", folder).stdout
    asked = sightline("ask", "What colour?", "--model", folder, "--image", image, "--max-tokens", "5", "--timings")
    assert asked.returncode == 0, asked.stderr
    assert "5 out" in asked.stdout or "by stop" in asked.stdout


def test_info_says_what_memory_several_gpus_take(tmp_path: Path) -> None:
    """Red when a rank's share is counted wrong: 72B in bfloat16 fit no GPU alone, and four of 96 GB."""
    folder = tmp_path / "model"
    assert sightline("model", "new", folder, "--family", "qwen2.5-vl", "--size", "72b", "--no-weights").returncode == 0
    alone = sightline("model", "info", folder).stdout
    assert "one GPU, 146.8 GB of weights, 320.0 KiB a token" in alone and "141 GB: no" in alone
    four = sightline("model", "info", folder, "--tensor-parallel-size", "4").stdout
    assert "4 GPUs, 37.8 GB of weights each, 80.0 KiB a token" in four and ": no" not in four
    refused = sightline("model", "info", folder, "--tensor-parallel-size", "0")
    assert refused.returncode == 1 and "tensor_parallel_size is 0" in refused.stderr


def test_no_weights_and_dummy(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    assert sightline("model", "new", folder, "--family", "qwen3-vl", "--no-weights").returncode == 0
    assert not list(folder.glob("*.safetensors"))
    refused = sightline("ask", "hi", "--model", folder)
    assert refused.returncode == 1 and "model.safetensors" in refused.stderr
    asked = sightline("ask", "hi", "--model", folder, "--load-format", "dummy", "--max-tokens", "3")
    assert asked.returncode == 0, asked.stderr


def test_fp8(tmp_path: Path) -> None:
    folder, image = tmp_path / "model", tmp_path / "image.png"
    Image.new("RGB", (90, 60), (200, 30, 30)).save(image)
    assert sightline("model", "new", folder, "--family", "qwen3-vl").returncode == 0
    assert "with --quantization fp8: 16 linear layers" in sightline("model", "info", folder).stdout
    asking = ("ask", "What colour?", "--model", folder, "--image", image, "--max-tokens", "3", "--quantize-tower")
    asked = sightline(*asking, "--quantization", "fp8")
    assert asked.returncode == 0, asked.stderr
    refused = sightline(*asking)
    assert refused.returncode == 1 and "quantize_tower" in refused.stderr


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    assert main(["model", "new", str(folder), "--family", "qwen3-vl"]) == 0
    return folder


def test_mistakes_are_one_sentence(model: Path, tmp_path: Path) -> None:
    """Each of these once would have been a traceback; the exit code is 1 for bad input."""
    (tmp_path / "text.png").write_text("not an image")
    Image.new("RGB", (900, 2)).save(tmp_path / "thin.png")
    (tmp_path / "whole.png").write_bytes(b"")
    truncated = tmp_path / "cut.jpg"
    Image.effect_noise((200, 200), 50).save(truncated)
    truncated.write_bytes(truncated.read_bytes()[:2000])
    broken = tmp_path / "broken"
    assert main(["model", "new", str(broken), "--family", "qwen3-vl", "--no-weights"]) == 0
    (broken / "chat_template.jinja").write_text("{% for x in %}")
    wrong = tmp_path / "wrong"
    assert main(["model", "new", str(wrong), "--family", "qwen3-vl", "--no-weights"]) == 0
    (wrong / "config.json").write_text('{"model_type": "llava"}')
    cases: list[tuple[list[str | Path], str]] = [
        (["ask", "hi", "--model", tmp_path / "gone"], "gone"),
        (["ask", "hi", "--model", tmp_path], "config.json"),
        (["ask", "hi", "--model", wrong], "llava"),
        (["ask", "hi", "--model", broken, "--load-format", "dummy"], "template"),
        (["ask", "hi", "--model", model, "--image", tmp_path / "gone.png"], "gone.png"),
        (["ask", "hi", "--model", model, "--image", tmp_path / "text.png"], "text.png"),
        (["ask", "hi", "--model", model, "--image", tmp_path / "thin.png"], "200"),
        (["ask", "hi", "--model", model, "--image", tmp_path / "whole.png"], "whole.png"),
        (["ask", "hi", "--model", model, "--image", truncated], "cut.jpg"),
        (["ask", "<|image_pad|>", "--model", model], "<|image_pad|>"),
        (["ask", "hi", "--model", model, "--max-tokens", "0"], "max_tokens is 0"),
        (["ask", "hi" * 5000, "--model", model], "8191"),
        (["ask", "hi", "--model", model, "--max-model-len", "99999"], "max_model_len is 99999"),
        (["ask", "hi", "--model", model, "--page-size", "0"], "page_size is 0"),
        (["ask", "hi", "--model", model, "--device", "tpu"], "tpu"),
        (["model", "new", model, "--family", "qwen3-vl"], "not empty"),
        (["model", "new", tmp_path / "x", "--family", "llama"], "llama"),
        (["model", "new", tmp_path / "x", "--family", "glm-4.1v", "--size", "1b"], "1b"),
    ]
    for arguments, words in cases:
        check_one_sentence(arguments, words)


def check_one_sentence(arguments: list[str | Path], words: str) -> None:
    import contextlib
    import io

    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        code = main([str(argument) for argument in arguments])
    said = errors.getvalue()
    assert code == 1, arguments
    assert words in said and said.count("\n") == 1 and "Traceback" not in said, said


def test_wrong_flags_suggest_the_right_one() -> None:
    done = sightline("ask", "hi", "--modle", "x")
    assert done.returncode == 2 and "did you mean --model?" in done.stderr
    assert done.stderr.count("\n") == 1
