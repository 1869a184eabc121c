"""Answers in a form: whatever the weights, the temperature and the company, they have it, and nobody else notices."""

import json
import re
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import assets
from engine.harness import Driver, driver, loaded, request_of, sized_driver, small_picture
from sightline.engine import pending_grammars
from sightline.errors import PromptError
from sightline.llm import LLM
from sightline.models.create import create_checkpoint
from sightline.models.families.qwen3_vl import FAMILY
from sightline.prompt.byte_tokenizer import write_byte_tokenizer
from sightline.types import Completion, SamplingParams, StructuredOutput

SIGN = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["sign", "menu", "Straßenschild", "看板"]},
        "words": {"type": "array", "items": {"type": "string", "maxLength": 6}, "minItems": 1, "maxItems": 3},
        "height": {"type": "integer", "minimum": 1, "maximum": 250},
        "ratio": {"type": ["number", "null"]},
        "inner": {"$ref": "#/$defs/flag"},
    },
    "required": ["kind", "words", "height", "inner"],
    "additionalProperties": False,
    "$defs": {
        "flag": {
            "type": "object",
            "properties": {"on": {"type": "boolean"}},
            "required": ["on"],
            "additionalProperties": False,
        }
    },
}


def assert_sign(text: str) -> None:
    value = json.loads(text)
    assert {"kind", "words", "height", "inner"} <= set(value) <= {"kind", "words", "height", "ratio", "inner"}
    assert value["kind"] in ("sign", "menu", "Straßenschild", "看板")
    assert 1 <= len(value["words"]) <= 3 and all(isinstance(word, str) and len(word) <= 6 for word in value["words"])
    assert type(value["height"]) is int and 1 <= value["height"] <= 250
    assert value.get("ratio") is None or isinstance(value["ratio"], int | float)
    assert type(value["inner"]["on"]) is bool and len(value["inner"]) == 1


@pytest.fixture
def folder(tiny_checkpoints: dict[str, Path]) -> Path:
    return tiny_checkpoints["qwen3-vl"]


def ends_of(folder: Path) -> frozenset[int]:
    return frozenset(loaded(folder).defaults.eos_token_ids)


def form(kind: Any, text: Any = "", **more: Any) -> StructuredOutput:
    return StructuredOutput(kind, text if isinstance(text, str) else json.dumps(text), **more)


def ask(run: Driver, folder: Path, *parts: Any, **options: Any) -> int:
    settings = {"tokens": 300, "temperature": 1.5, "end_tokens": ends_of(folder), **options}
    return run.add(request_of(folder, *parts), **settings)


def assert_in_form(answer: Completion, check: Any) -> None:
    """An answer that was cut may be incomplete; any other has the form."""
    if answer.finish_reason == "stop":
        check(answer.text)
    else:
        assert answer.finish_reason == "length" and len(answer.token_ids) == 300


def test_schemas_at_high_temperature(folder: Path) -> None:
    """Random weights, 40 seeds at once. Red when a mask is off by a bit, shared by rows or late by a token."""
    run = driver(folder, max_num_seqs=64, kv_cache_gb=0.1)
    numbers = [ask(run, folder, f"Read {seed}", structured=form("json_schema", SIGN), seed=seed) for seed in range(40)]
    run.run()
    answers = [run.completions[number, 0] for number in numbers]
    for answer in answers:
        assert_in_form(answer, assert_sign)
    done = [answer for answer in answers if answer.finish_reason == "stop"]
    assert len(done) >= 30 and len({answer.text for answer in done}) == len(done)


KINDS: list[Any] = [
    pytest.param("json_object", "", lambda text: isinstance(json.loads(text), dict), marks=pytest.mark.slow),
    ("regex", r"[a-f]{3,9}-\d+(é|漢|🦙){2}", lambda text: re.fullmatch(r"[a-f]{3,9}-[0-9]+(é|漢|🦙){2}", text)),
    ("json_schema", {"enum": ["yes", "no", "möglich 可能"]}, lambda text: json.loads(text) in ("yes", "no", "möglich 可能")),
    ("json_schema", {"type": "string", "minLength": 3, "maxLength": 8}, lambda text: 3 <= len(json.loads(text)) <= 8),
    ("json_schema", {"type": "integer"}, lambda text: type(json.loads(text)) is int),
    ("lark", 'start: "a" start "b" | "ab"', lambda text: text == "a" * (len(text) // 2) + "b" * (len(text) // 2)),
]


@pytest.mark.parametrize(("kind", "text", "fits"), KINDS, ids=lambda value: str(value)[:24])
@pytest.mark.parametrize("temperature", [0, 1.5])
def test_every_kind(tiny_checkpoints: dict[str, Path], kind: Any, text: Any, fits: Any, temperature: float) -> None:
    for folder in tiny_checkpoints.values():
        run = driver(folder, kv_cache_gb=0.1)
        numbers = [
            ask(run, folder, small_picture(1), f"{seed}", structured=form(kind, text), seed=seed, temperature=temperature)
            for seed in range(6)
        ]
        run.run()
        for number in numbers:
            assert_in_form(run.completions[number, 0], lambda text: pytest.fail(text) if not fits(text) else None)


# ---- A vocabulary as large as a published one


@pytest.fixture(scope="module", params=["bytes", "published"])
def large(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with 151,936 columns of logits: a byte tokenizer with published ids, or a published tokenizer."""
    folder = tmp_path_factory.mktemp("large") / "model"
    create_checkpoint(folder, "qwen3-vl", "tiny", weights=False)
    before, after = FAMILY.special_tokens.ids(256), FAMILY.special_tokens.ids()
    moved = {before[name]: token for name, token in after.items()}
    for name in ("config.json", "generation_config.json"):
        content = json.loads((folder / name).read_text())
        for part in (content, content.get("text_config", {})):
            for key, value in part.items():
                if key.endswith("token_id"):
                    part[key] = [moved[token] for token in value] if isinstance(value, list) else moved[value]
        if "text_config" in content:
            content["text_config"]["vocab_size"] = 151_936
        (folder / name).write_text(json.dumps(content))
    if request.param == "bytes":
        write_byte_tokenizer(folder, after, "<|im_end|>")
    else:
        shutil.copy(assets.asset("tokenizer/qwen3") / "tokenizer.json", folder / "tokenizer.json")
    return folder


def test_a_published_vocabulary(large: Path) -> None:
    """Most of its tokens are long, some are pieces of characters, and some columns have no token."""
    chats = [[{"role": "user", "content": f"Number {seed}."}] for seed in range(8)]
    forms: list[tuple[Any, Any, Any]] = [
        ("json_schema", SIGN, assert_sign),
        ("regex", "(é|漢|𓀀|🦙){5}", lambda text: re.fullmatch("(é|漢|𓀀|🦙){5}", text) or pytest.fail(text)),
    ]
    settings = {"kv_cache_gb": 0.1, "embedding_cache_gb": 0.02, "max_model_len": 2048}
    with LLM(large, device="cpu", load_format="dummy", dtype="float32", **settings) as llm:
        for kind, text, check in forms:
            params = SamplingParams(max_tokens=300, temperature=1.5, seed=3, structured=form(kind, text))
            answers = llm.chat(chats, params)
            assert sum(answer.finish_reason == "stop" for answer in answers) >= 4
            for answer in answers:
                assert_in_form(answer, check)


# ---- Company


def test_free_requests_do_not_notice(folder: Path) -> None:
    """Red when a mask reaches a neighbour's row, or when rows are taken apart differently because of one."""
    free: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 1.2, "seed": 1},
        {"temperature": 0.9, "top_p": 0.8, "seed": 2},
        {"temperature": 0.9, "top_k": 20, "seed": 3, "repetition_penalty": 1.2},
    ]
    run = driver(folder)
    numbers = [ask(run, folder, "Free", tokens=30, **options) for options in free]
    run.run()
    alone = [run.tokens(number) for number in numbers]
    run = driver(folder)
    mixed = []
    for seed, options in enumerate(free):
        ask(run, folder, "Formed", structured=form("json_schema", SIGN), seed=seed)
        mixed.append(ask(run, folder, "Free", tokens=30, **options))
        ask(run, folder, "Formed", structured=form("regex", "[ab]{40}"), seed=seed, top_p=0.9)
    run.run()
    assert [run.tokens(number) for number in mixed] == alone


def formed_tokens(run: Driver, folder: Path) -> list[list[int]]:
    """Tokens of four requests with pictures and forms, two answers each."""
    forms = [form("json_schema", SIGN), form("regex", "[ab]{40}"), form("json_object"), form("regex", "(x|yy|zzz){14}")]
    numbers = [
        ask(run, folder, "a" * seed, small_picture(seed), "?", structured=structured, seed=seed, n=2, tokens=40)
        for seed, structured in enumerate(forms)
    ]
    run.run()
    return [run.tokens(number, index) for number in numbers for index in range(2)]


def test_preemption_keeps_the_place_in_the_grammar(folder: Path) -> None:
    """Red when a preempted answer begins its grammar again, or forgets it."""
    calm = driver(folder)
    expected = formed_tokens(calm, folder)
    assert calm.engine.schedule.preemptions == 0
    longest = len(request_of(folder, "aaa", small_picture(3), "?"))
    tight = sized_driver(folder, tokens=longest + 60, rows=64, page_size=2)
    assert formed_tokens(tight, folder) == expected
    assert tight.engine.schedule.preemptions > 0


def test_several_answers_have_their_own_states(folder: Path) -> None:
    run = driver(folder)
    number = ask(run, folder, "n", structured=form("json_schema", SIGN), n=3, seed=5)
    run.run()
    answers = [run.completions[number, index] for index in range(3)]
    for answer in answers:
        assert_in_form(answer, assert_sign)
    assert len({answer.text for answer in answers}) == 3


# ---- Ends


def test_the_end_comes_with_the_form(folder: Path) -> None:
    """A form that cannot go on ends at once; one that can ends with an end token, unless these are ignored."""
    run = driver(folder)
    fixed = ask(run, folder, "x", structured=form("regex", "abc"))
    ignored = ask(run, folder, "x", structured=form("regex", "abc"), end_tokens=frozenset())
    endless = ask(run, folder, "x", structured=form("regex", "a+"), end_tokens=frozenset(), tokens=20)
    long = ask(run, folder, "x", structured=form("regex", "[a-z]{1,400}"), tokens=10)
    open_end = [ask(run, folder, "x", structured=form("regex", "a+"), seed=seed) for seed in range(10)]
    run.run()
    for number in (fixed, ignored):
        assert run.tokens(number) == list(b"abc") and run.completions[number, 0].finish_reason == "stop"
    assert run.completions[endless, 0].text == "a" * 20 and run.completions[endless, 0].finish_reason == "length"
    assert len(run.tokens(long)) <= 10
    for number in open_end:
        tokens, reason = run.tokens(number), run.completions[number, 0].finish_reason
        assert reason == "length" or (set(tokens[:-1]) <= {ord("a")} and tokens[-1] in ends_of(folder) and len(tokens) > 1)
        assert set(run.completions[number, 0].text) == {"a"}


def test_min_tokens_gives_way_to_the_form(folder: Path) -> None:
    run = driver(folder)
    short = ask(run, folder, "x", structured=form("regex", "ab"), min_tokens=10)
    open_end = [ask(run, folder, "x", structured=form("regex", "a+"), min_tokens=15, seed=seed) for seed in range(8)]
    # All that is allowed are stop tokens: the first is text, since nothing can end there; at the second one it can.
    ends = ask(run, folder, "x", structured=form("regex", "a+"), min_tokens=10, end_tokens=ends_of(folder) | {ord("a")})
    run.run()
    assert not run.errors and run.completions[ends, 0].finish_reason == "stop" and len(run.tokens(ends)) == 2
    assert run.completions[short, 0].text == "ab" and run.completions[short, 0].finish_reason == "stop"
    assert all(len(run.completions[number, 0].text) >= 15 for number in open_end)


def test_stop_strings_and_stop_tokens_still_stop(folder: Path) -> None:
    run = driver(folder)
    string = ask(run, folder, "x", structured=form("regex", "[ab]{20}END[ab]{20}"), stop=("END",))
    token = ask(run, folder, "x", structured=form("regex", "[ab]{20}c[ab]{20}"), end_tokens=frozenset({ord("c")}))
    late = ask(run, folder, "x", structured=form("regex", "[ab]{5}c[ab]{5}"), end_tokens=frozenset({ord("c")}), min_tokens=8)
    run.run()
    assert re.fullmatch("[ab]{20}", run.completions[string, 0].text)
    assert re.fullmatch("[ab]{20}", run.completions[token, 0].text) and run.tokens(token)[-1] == ord("c")
    assert re.fullmatch("[ab]{5}c[ab]{5}", run.completions[late, 0].text), "before min_tokens it is a letter like any other"


def test_logprobs_are_the_model_s_own(folder: Path) -> None:
    """The first token's logprobs do not depend on the form. Red when they are taken from masked scores."""
    run = driver(folder)
    free = ask(run, folder, "x", temperature=0, logprobs=True, top_logprobs=5, tokens=1)
    formed = ask(run, folder, "x", temperature=0, logprobs=True, top_logprobs=5, structured=form("regex", "q"))
    run.run()
    (one,), (other,) = run.completions[free, 0].logprobs, run.completions[formed, 0].logprobs
    np.testing.assert_allclose([p for _, p in one.top], [p for _, p in other.top], atol=1e-5)
    assert other.token_id == ord("q") and other.logprob < one.logprob


# ---- What goes wrong


def test_abort_and_refusal_while_compiling(folder: Path, monkeypatch: pytest.MonkeyPatch, overlap: bool) -> None:
    """A slow grammar holds up nobody; its request can be aborted; what cannot be compiled fails alone."""
    go_on = threading.Event()
    compile_now = pending_grammars.compile_grammar

    def compile_slowly(structured: StructuredOutput, tokenizer: Any) -> Any:
        assert go_on.wait(60)
        return compile_now(structured, tokenizer)

    monkeypatch.setattr(pending_grammars, "compile_grammar", compile_slowly)
    run = driver(folder)
    doomed = ask(run, folder, "x", structured=form("regex", f"slow1{overlap}"))  # compiled by no test before
    kept = ask(run, folder, "x", structured=form("regex", f"slow2{overlap}"), n=2)
    wrong = ask(run, folder, "x", structured=form("regex", "(slow"), n=2)
    other = ask(run, folder, "x", tokens=5)
    run.run(until=lambda: (other, 0) in run.completions)
    assert run.engine.has_work and run.engine.abort(doomed) and not run.engine.abort(doomed)
    run.step()
    go_on.set()
    run.run()
    assert run.completions[kept, 0].text == run.completions[kept, 1].text == f"slow2{overlap}"
    assert isinstance(run.errors[wrong], PromptError) and "unclosed" in str(run.errors[wrong])
    assert (doomed, 0) not in run.completions and not run.engine.has_work
    run.engine.close()


@pytest.mark.parametrize("which", [0, 1])
def test_a_dead_end_fails_its_request_alone(folder: Path, which: int) -> None:
    """Red when an answer that has nowhere to go is given tokens at random, or takes the others of its step with it."""
    run = driver(folder)
    stuck = ask(run, folder, "x", structured=form("regex", "ab*c"), n=2)
    fine = ask(run, folder, "x", structured=form("regex", "[ab]{20}"))
    answers = run.engine._requests[stuck]
    run.run(until=lambda: all(answer.grammar is not None for answer in answers))
    answers[which].grammar.advance(ord("?"))  # as if a token had come that the grammar does not know
    run.run()
    assert isinstance(run.errors[stuck], PromptError) and "form asked for" in str(run.errors[stuck])
    assert re.fullmatch("[ab]{20}", run.completions[fine, 0].text)
    assert not run.engine.has_work and run.engine.schedule.pages.private_pages == 0


def test_masks_that_cannot_be_made_cost_their_requests_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when an exception of the library ends the engine, or an answer without a form."""
    run = driver(folder)
    formed = ask(run, folder, "x", structured=form("regex", "[ab]{20}"))
    plain = ask(run, folder, "x")
    with monkeypatch.context() as patch:
        patch.setattr("sightline.engine.engine.allowed_tokens", lambda *_: (_ for _ in ()).throw(RuntimeError("torn")))
        run.run(until=lambda: formed in run.errors)
    assert "torn" in str(run.errors[formed])
    run.run()
    assert (plain, 0) in run.completions and not run.engine.has_work


def test_engines_may_share_a_tokenizer(folder: Path) -> None:
    """Red when states hang on the engine that compiled them first."""
    first, second = driver(folder), driver(folder)
    numbers = [ask(run, folder, "x", structured=form("regex", "shared[ab]{3}"), seed=1) for run in (first, second)]
    first.run()
    second.run()
    assert first.tokens(numbers[0]) == second.tokens(numbers[1])
