"""Token ids: the real tokenizers against known ids, and our byte tokenizer against transformers' reading of its files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from assets import asset
from prompt.builders import EOS, FAMILIES, byte_tokenizer
from sightline.errors import CheckpointError, ConfigError, PromptError
from sightline.models.registry import family_named
from sightline.prompt.byte_tokenizer import write_byte_tokenizer
from sightline.prompt.tokenizer import Tokenizer, special_token_names

TEXTS = [
    "",
    "Hello",
    " a\tb\n\n",
    "日本語 🦙 e\u0301 ÿ\x00",
    "<|im_start",
    "<|im_end|><|im_end|>",
    "x<think>y</think> [gMASK]<sop>",
]


# --- the real tokenizers ---


@pytest.mark.parametrize("kind", ["qwen2_5", "qwen3"])
def test_golden_ids(kind: str) -> None:
    """Red if special tokens are added around a text, not parsed inside it, or the text is changed before it is encoded."""
    folder = asset("tokenizer")
    tokenizer = Tokenizer.from_folder(folder / kind)
    cases = json.loads((folder / "golden_ids.json").read_text())["qwen2_5_and_qwen3"]["cases"]
    assert len(cases) > 40
    wrong = [text for text, ids in cases if tokenizer.encode(text) != ids]
    assert wrong == []


@pytest.mark.slow
def test_golden_ids_of_qwen3_5(tmp_path: Path) -> None:
    """The same of a tokenizer that counts marks as letters, put together from its published ranks; and its special tokens."""
    folder = asset("tokenizer")
    ranks = folder / "qwen3_5" / "qwen3_6.tiktoken"
    program = [sys.executable, str(folder / "build_tokenizer.py"), "qwen3_5", str(ranks), str(tmp_path / "tokenizer.json")]
    subprocess.run(program, check=True)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    tokenizer = Tokenizer.from_folder(tmp_path)
    cases = json.loads((folder / "golden_ids.json").read_text())["qwen3_5"]["cases"]
    assert len(cases) > 20 and [text for text, ids in cases if tokenizer.encode(text) != ids] == []
    table = family_named("qwen3.5").special_tokens.ids()
    assert {name: tokenizer.id_of(name) for name in table} == table and tokenizer.vocab_size == max(table.values()) + 1


def test_real_special_ids() -> None:
    """Red if our table of Qwen's special tokens differs from the published tokenizers in a name, an id or a visibility."""
    for kind, family in (("qwen2_5", "qwen2.5-vl"), ("qwen3", "qwen3-vl")):
        folder = asset(f"tokenizer/{kind}")
        tokenizer = Tokenizer.from_folder(folder)
        table = family_named(family).special_tokens.ids()
        published = json.loads((folder / "tokenizer_config.json").read_text())["added_tokens_decoder"]
        assert {name: int(token_id) for token_id, token in published.items() if (name := token["content"])} == table
        assert {name: tokenizer.id_of(name) for name in table} == table
        assert tokenizer.token_of(table["<|image_pad|>"]) == "<|image_pad|>"
        assert tokenizer.vocab_size == max(table.values()) + 1


# --- the byte tokenizer ---


@pytest.mark.parametrize("base", [None, 256, 1000])
@pytest.mark.parametrize("family", FAMILIES)
def test_bytes_and_specials(family: str, base: int | None, tmp_path: Path) -> None:
    """Red if a byte is not its own id, a special token loses its id over a gap, or merges appear."""
    tokenizer = byte_tokenizer(tmp_path, family, base)
    table = family_named(family).special_tokens.ids(base)
    assert tokenizer.encode("aé\n🦙") == list("aé\n🦙".encode())
    assert tokenizer.encode("".join(f"{name}." for name in table)) == [x for i in table.values() for x in (i, ord("."))]
    assert {name: tokenizer.id_of(name) for name in table} == table
    assert tokenizer.vocab_size == max(table.values()) + 1
    every_byte = "".join(map(chr, range(256)))
    assert tokenizer.decode(tokenizer.encode(every_byte)) == every_byte


@pytest.mark.parametrize("base", [None, 256])
@pytest.mark.parametrize(("family", "model_type"), [(family, family_named(family).model_type) for family in FAMILIES])
def test_transformers_gives_the_same_ids(family: str, model_type: str, base: int | None, tmp_path: Path) -> None:
    """Red if transformers reads other ids, another end token or another notion of what is special from our files."""
    from prompt.oracle import transformers

    ours = byte_tokenizer(tmp_path, family, base)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))  # may make transformers choose a class
    names = family_named(family).special_tokens.ids(base)
    for loader in (transformers.AutoTokenizer, transformers.PreTrainedTokenizerFast):
        theirs = loader.from_pretrained(tmp_path)
        for text in [*TEXTS, "x".join(names)]:
            ids = ours.encode(text)
            assert theirs(text).input_ids == ids
            assert theirs.decode(ids) == ours.decode(ids, skip_special_tokens=False) == text
            assert theirs.decode(ids, skip_special_tokens=True) == ours.decode(ids)
        assert theirs.eos_token_id == names[EOS[family]]


def test_decode_keeps_what_a_reader_should_see(tmp_path: Path) -> None:
    """Red if tags of reasoning and tools are treated as special, or turn marks are not."""
    tokenizer = byte_tokenizer(tmp_path, "qwen3-vl")
    ids = tokenizer.encode("<think>a</think><tool_call>b<|im_end|>")
    assert tokenizer.decode(ids) == "<think>a</think><tool_call>b"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<think>a</think><tool_call>b<|im_end|>"


def test_glm_published_ids() -> None:
    """Red if a GLM token moves away from the id that its published config names."""
    table = family_named("glm-4.1v").special_tokens.ids()
    media = ("<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>", "<|image|>", "<|video|>")
    assert [table[name] for name in media] == [151339, 151340, 151341, 151342, 151343, 151344]
    # The end tokens of the published config.
    assert [table[name] for name in ("<|endoftext|>", "<|user|>", "<|observation|>", "</answer>")] == [
        151329,
        151336,
        151338,
        151348,
    ]
    newer = family_named("glm-4.6v-flash").special_tokens.ids()
    assert [newer[name] for name in media] == [151339, 151340, 151341, 151342, 151363, 151364]
    assert [newer[name] for name in ("<|endoftext|>", "<|user|>", "<|observation|>")] == [151329, 151336, 151338]


# --- what a user can get wrong ---


def test_unusable_tokenizer_files(tmp_path: Path) -> None:
    """Red if a missing or corrupt file gives anything but one sentence that names it."""
    with pytest.raises(CheckpointError, match=rf"{tmp_path.name} has no tokenizer.json"):
        Tokenizer.from_folder(tmp_path)
    for corrupt in ("", "{", '{"model": {}}', "[]"):
        (tmp_path / "tokenizer.json").write_text(corrupt)
        with pytest.raises(CheckpointError, match=r"tokenizer\.json is not a usable tokenizer"):
            Tokenizer.from_folder(tmp_path)


def test_unknown_tokens(tmp_path: Path) -> None:
    """Red if an unknown token or id is answered with None or another token."""
    tokenizer = byte_tokenizer(tmp_path, "qwen3-vl")
    with pytest.raises(CheckpointError, match=r"<\|image\|>"):
        tokenizer.id_of("<|image|>")
    with pytest.raises(CheckpointError, match="99999"):
        tokenizer.token_of(99999)


def test_lone_surrogate(tmp_path: Path) -> None:
    """Red if text that is not Unicode escapes as a TypeError of the library."""
    with pytest.raises(PromptError, match=r"'\\ud83e' at character 2"):
        byte_tokenizer(tmp_path, "qwen3-vl").encode("ab\ud83e")


def test_long_texts_are_read_as_short_ones(tmp_path: Path) -> None:
    """They go through other calls of the library. Red if these read something else, or fail otherwise."""
    tokenizer = byte_tokenizer(tmp_path, "qwen3-vl")
    piece = "aé\n🦙<|im_end|>x <think>"
    ids = tokenizer.encode(piece)
    assert tokenizer.encode(piece * 2000) == ids * 2000
    for skip in (True, False):
        assert tokenizer.decode(ids * 2000, skip) == tokenizer.decode(ids, skip) * 2000
    with pytest.raises(PromptError, match=r"'\\ud83e' at character 20000"):
        tokenizer.encode("a" * 20_000 + "\ud83e")


def test_truncation_in_the_file_is_ignored(tmp_path: Path) -> None:
    """Red if a tokenizer.json saved with truncation or padding cuts or pads prompts."""
    byte_tokenizer(tmp_path, "qwen3-vl")
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    content["padding"] = {
        "strategy": {"Fixed": 8},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "!",
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert Tokenizer.from_folder(tmp_path).encode("abcd") == [97, 98, 99, 100]


def test_names_of_special_tokens(tmp_path: Path) -> None:
    """Red if a null name reaches a template as a variable, or a serialised token is not unpacked."""
    assert special_token_names(tmp_path) == {}
    config = {"bos_token": None, "eos_token": {"content": "<e>"}, "pad_token": "<p>", "other": "x"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert special_token_names(tmp_path) == {"eos_token": "<e>", "pad_token": "<p>"}
    (tmp_path / "tokenizer_config.json").write_text("[1]")
    with pytest.raises(CheckpointError, match="list"):
        special_token_names(tmp_path)


def test_refused_tables(tmp_path: Path) -> None:
    """Red if ids that collide with bytes or each other, an absent end token or an unknown family are accepted."""
    with pytest.raises(ConfigError, match="255"):
        family_named("qwen3-vl").special_tokens.ids(255)
    with pytest.raises(ConfigError, match="'gpt'"):
        family_named("gpt")
    with pytest.raises(ConfigError, match="'<e>'"):
        write_byte_tokenizer(tmp_path, {"<a>": 300}, "<e>")
    with pytest.raises(ConfigError, match="65"):
        write_byte_tokenizer(tmp_path, {"<e>": 65}, "<e>")
    with pytest.raises(ConfigError, match="'<a>' and '<e>' share id 300"):
        write_byte_tokenizer(tmp_path, {"<a>": 300, "<e>": 300}, "<e>")
    assert list(tmp_path.iterdir()) == []
