"""`sightline serve` as it is called: flags, the config file, and one sentence for each mistake."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sightline.cli.main import make_parser
from sightline.cli.serve import OTHERS, serve_config
from sightline.config import Config
from sightline.errors import ConfigError


def config(*arguments: str) -> Config:
    return serve_config(make_parser().parse(["serve", *arguments]))


def sightline(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "sightline.cli.main", *arguments], capture_output=True, text=True, timeout=120)


def test_options_reach_the_configuration() -> None:
    made = config(
        *(
            "a/model",
            "--host",
            "0.0.0.0",
            "--port",
            "9",
            "--api-key",
            "k",
            "l",
            "--served-model-name",
            "m",
            "--dtype",
            "float32",
        ),
        *("--max-model-len", "99", "--max-num-seqs", "3", "--max-num-batched-tokens", "77", "--gpu-memory-utilization", "0.5"),
        *(
            "--load-format",
            "dummy",
            "--no-enable-prefix-caching",
            "--allowed-media-domains",
            "x.example",
            "--max-pixels",
            "5000",
        ),
        *("--tensor-parallel-size", "1", "--allowed-origins", "*", "--limit-mm-per-prompt", '{"image": 4}'),
    )
    assert (made.model.model, made.model.dtype, made.model.max_model_len, made.model.load_format) == (
        "a/model",
        "float32",
        99,
        "dummy",
    )
    assert (made.server.host, made.server.port, made.server.api_key) == ("0.0.0.0", 9, ("k", "l"))
    assert made.server.served_model_name == ("m",) and made.server.allowed_origins == ("*",)
    assert (made.engine.max_num_seqs, made.engine.max_num_batched_tokens) == (3, 77)
    assert made.engine.gpu_memory_utilization == 0.5 and not made.engine.enable_prefix_caching
    assert made.media.allowed_media_domains == ("x.example",) and made.media.max_pixels == 5000


def test_flags_of_sglang_that_mean_the_same() -> None:
    """Red when one of them is dropped, or leads to another setting. `--help` shows ours alone."""
    made = config(
        *("--model-path", "a/model", "--tp-size", "1", "--tp", "1", "--chunked-prefill-size", "4096"),
        *("--max-running-requests", "7", "--context-length", "99", "--random-seed", "3", "--disable-radix-cache"),
        *("--enable-cache-report", "--log-requests", "--enable-multimodal", "--enable-metrics", "--skip-server-warmup"),
        *("--disable-overlap-schedule", "--limit-mm-data-per-request", '{"image": 4}', "--log-level", "warning"),
    )
    assert (made.model.model, made.model.max_model_len, made.model.seed) == ("a/model", 99, 3)
    assert (made.engine.max_num_batched_tokens, made.engine.max_num_seqs) == (4096, 7)
    assert (made.engine.enable_prefix_caching, made.engine.overlap, made.engine.warm_up) == (False, False, False)
    assert made.media.limit_mm_per_prompt == '{"image": 4}' and made.server.log_level == "warning"


def test_flags_of_sglang_in_a_config_file(tmp_path: Path) -> None:
    """By the same table as on the command line; red when the file knows the names of our settings alone."""
    file = tmp_path / "serve.yaml"
    file.write_text("model-path: theirs\nmax_running_requests: 5\ndisable-radix-cache: true\n")
    made = config("--config", str(file))
    assert (made.model.model, made.engine.max_num_seqs, made.engine.enable_prefix_caching) == ("theirs", 5, False)
    file.write_text("disable-radix-cache: false\n")
    assert config("--config", str(file)).engine.enable_prefix_caching


def test_every_setting_that_a_hint_names_exists() -> None:
    """Red when a setting is renamed and the hint for a flag of SGLang or vLLM still has the old name."""
    ours = {flag for action in make_parser().parse(["serve"]).subparser._actions for flag in action.option_strings}
    assert not ours & OTHERS.keys(), "what is taken needs no hint"
    for hint in OTHERS.values():
        assert set(re.findall(r"--[\w-]+", hint)) <= ours, hint


@pytest.mark.parametrize("flag", ["--enable-lora", "--enable-auto-tool-choice", "--trust-remote-code", "--tool-call-parser"])
def test_flags_of_vllm_that_are_not_ours_get_a_sentence(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        config(flag, "hermes")
    assert capsys.readouterr().err == f"sightline serve: there is no option {flag}; {OTHERS[flag]}.\n"


def test_keys_from_a_file_and_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when the environment's key is taken beside others, or a file's comment is one."""
    file = tmp_path / "keys"
    file.write_text("# of the tests\nfirst\n\n  second \n")
    assert config("--api-key-file", str(file)).server.api_key == ("first", "second")
    monkeypatch.setenv("SIGHTLINE_API_KEY", "from-outside\n")
    assert config().server.api_key == ("from-outside",)
    assert config("--api-key", "a", "--api-key-file", str(file)).server.api_key == ("a", "first", "second")
    assert config("--api-key", "a").server.api_key == ("a",)
    for content, reason in (("# none\n", "has no key."), (None, "cannot be read: No such file or directory.")):
        file.unlink() if content is None else file.write_text(content)
        with pytest.raises(ConfigError, match=f"^api_key_file '{file}' {reason}$"):
            config("--api-key-file", str(file))
    monkeypatch.setenv("SIGHTLINE_API_KEY", " ")
    with pytest.raises(ConfigError, match=r"^SIGHTLINE_API_KEY of the environment is empty"):
        config()


def test_flags_from_before_a_renaming(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Red when a server of last week's command line or config file does not start any more, or help names the old flag."""
    assert config().engine.async_encode is None
    assert config("--encode-aside").engine.async_encode is True  # old name
    (tmp_path / "options.yaml").write_text("encode_aside: false\n")  # old name
    assert config("--config", str(tmp_path / "options.yaml")).engine.async_encode is False
    with pytest.raises(SystemExit):
        make_parser().parse(["serve", "--help"])
    assert "encode-aside" not in capsys.readouterr().out  # old name


def test_local_files_are_off_unless_a_folder_is_named() -> None:
    """The library's default is the other way round: there the user names the files."""
    assert config().media.allowed_local_media_path is None
    assert config("--allowed-local-media-path", "/srv").media.allowed_local_media_path == "/srv"


def test_a_config_file_and_the_command_line_over_it(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(
        "model: from-file\nport: 1234\nmax-num-seqs: 5\nenable_prefix_caching: false\napi-key: [a, b]\n"
        "limit_mm_per_prompt: {image: 3}\nallowed-local-media-path: /srv\nkv_cache_gb: 0.5\nserved-model-name: one\n"
    )
    made = config("--config", str(file), "--port", "99")
    assert (made.model.model, made.server.port, made.engine.max_num_seqs) == ("from-file", 99, 5)
    assert made.server.api_key == ("a", "b") and made.server.served_model_name == ("one",)
    assert not made.engine.enable_prefix_caching and made.engine.kv_cache_gb == 0.5
    assert made.media.allowed_local_media_path == "/srv" and '"image": 3' in made.media.limit_mm_per_prompt
    assert config("other", "--config", str(file)).model.model == "other"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("prot: 1", "has an option 'prot' that does not exist; did you mean 'port'?"),
        ("mem-fraction-static: 0.8", "has an option 'mem-fraction-static' that does not exist; use --gpu-memory-utilization"),
        ("no_warm_up: true", "has an option 'no_warm_up' that does not exist; did you mean 'warm_up'?"),
        ("zzzz: 1", "has an option 'zzzz' that does not exist."),
        ("enable_prefix_caching: 3", "enable_prefix_caching = 3, but it must be true or false."),
        ("- 1", "must hold names and values, not a list."),
        ("a: [", "is not YAML"),
    ],
)
def test_mistakes_in_a_config_file(tmp_path: Path, content: str, sentence: str) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=sentence.replace("?", r"\?").replace(".", r"\.")):
        config("--config", str(file))


def test_a_wrong_value_in_a_config_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("port: many")
    with pytest.raises(SystemExit):
        config("--config", str(file))
    assert "argument --port: invalid int value: 'many'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--prot", "1"], 2, "there is no option --prot; did you mean --port?"),
        (["--mem-fraction-static", "0.8"], 2, "there is no option --mem-fraction-static; use --gpu-memory-utilization"),
        (["--tp-size", "0"], 1, "tensor_parallel_size is 0, but must be at least 1."),
        (["--chat-template", "/no/such.jinja"], 1, "chat_template is '/no/such.jinja', but there is no such file."),
        (["--tensor-parallel-size", "-2"], 1, "tensor_parallel_size is -2, but must be at least 1."),
        (["--config", "/nowhere.yaml"], 1, "The config file /nowhere.yaml cannot be read"),
        (["a", "--model", "b"], 1, "The model is named twice: 'a' and --model 'b'."),
        (["/no/such/folder"], 1, "There is no folder /no/such/folder"),
        (["--host", "203.0.113.7"], 1, "Cannot listen on 203.0.113.7:8000"),
        (["--port", "70000"], 1, "port is 70000, but must be between 0 and 65535."),
        (["--api-key", ""], 1, "An API key is empty: whoever sends none would have it."),
        (["--max-request-mb", "-1"], 1, "max_request_mb is -1.0, but must be at least 0."),
        (["--max-model-len", "1"], 1, "max_model_len is 1, but must be between 2 and"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_mistakes_are_one_sentence(arguments: list[str], code: int, sentence: str) -> None:
    done = sightline("serve", *arguments)
    assert done.returncode == code and sentence in done.stderr
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr


def test_what_only_the_engine_finds_ends_the_server_with_its_sentence() -> None:
    """No restarts: a second attempt would end the same."""
    done = sightline("serve", "--port", "0", "--device", "cpu", "--kv-cache-gb", "0.000001")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("sightline: kv_cache_gb is 1e-06, room for 0 tokens")
    assert "restart" not in done.stderr and "Traceback" not in done.stderr


def test_help_is_grouped(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        make_parser().parse(["serve", "--help"])
    text: Any = capsys.readouterr().out
    groups = ["Where the server listens", "Which model runs", "How much runs at once", "What images and videos may be"]
    places = [text.index(group) for group in groups]
    assert places == sorted(places)
    assert all(text.rindex(flag) > places[0] for flag in ("--served-model-name", "--gpu-memory-utilization", "--max-pixels"))
