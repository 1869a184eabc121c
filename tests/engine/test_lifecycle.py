"""How requests live and end: aborts and failures in every state, several answers, stops, log-probabilities, times."""

import dataclasses
import io
from pathlib import Path

import pytest
import torch

from engine.harness import Driver, driver, loaded, plain_answer, request_of, sized_driver, small_picture
from oracle import oracle
from sightline.errors import MediaError, PromptError
from sightline.grammar.compile import compile_grammar
from sightline.timing import StageClock
from sightline.types import Request, StructuredOutput


@pytest.fixture
def folder(tiny_checkpoints: dict[str, Path]) -> Path:
    return tiny_checkpoints["qwen3-vl"]


def assert_nothing_held(run: Driver) -> None:
    schedule = run.engine.schedule
    assert not schedule.has_work
    assert schedule.pages.private_pages == 0 and schedule.pages.total_locks == 0 and schedule.embeddings.total_pins == 0
    assert schedule.pages.available_pages == schedule.pages.usable_pages
    rows = schedule.embeddings
    assert rows.free_blocks + rows.evictable_blocks == rows.blocks, "an entry that nobody encodes is left behind"
    run.engine.check_integrity()


@pytest.mark.parametrize("steps", range(12))
def test_abort_in_each_state(folder: Path, steps: int) -> None:
    """After 0 steps it waits, then it is in mid-prefill (chunks of 9), then it decodes. The others do not notice."""
    request = request_of(folder, "abort me ", small_picture(1), " please, whenever")
    other = request_of(folder, "stay ", small_picture(1))
    run = driver(folder, max_num_batched_tokens=9)
    doomed, kept = run.add(request, n=2), run.add(other)
    for _ in range(steps):
        run.step()
    assert run.engine.abort(doomed)
    run.engine.check_integrity()
    assert not run.engine.abort(doomed)
    run.run()
    assert run.tokens(kept) == plain_answer(folder, other)
    assert (doomed, 0) not in run.completions
    assert_nothing_held(run)


def test_without_a_cache_embeddings_go_with_the_last_request_that_needs_them(folder: Path) -> None:
    """Red when embedding_cache_gb 0 refuses to start, keeps anything for later, or forgets what another request still needs."""
    shared = small_picture(4)
    long, short = request_of(folder, "one ", shared, " and more of it"), request_of(folder, "two ", shared)
    run = driver(folder, embedding_cache_gb=0, enable_prefix_caching=False)
    first, second = run.add(long, tokens=8), run.add(short, tokens=2)
    run.run(until=lambda: (second, 0) in run.completions)
    assert (first, 0) not in run.completions and run.engine.schedule.embeddings.used_blocks > 0
    run.run()
    assert (run.engine.schedule.embeddings.misses, run.engine.schedule.embeddings.used_blocks) == (1, 0)
    again = run.add(short)
    run.run()
    assert run.completions[again, 0].encoded_items == 1 and run.tokens(again) == plain_answer(folder, short)
    assert (run.engine.schedule.embeddings.misses, run.engine.schedule.embeddings.used_blocks) == (2, 0)
    assert_nothing_held(run)


@pytest.mark.parametrize("steps", range(6))
def test_without_a_cache_an_abort_leaves_no_embeddings(folder: Path, steps: int) -> None:
    """Red when an item stays that was still being encoded when its only request went."""
    run = driver(folder, embedding_cache_gb=0, max_num_batched_tokens=9)
    doomed = run.add(request_of(folder, "abort me ", small_picture(1), " please, whenever"))
    for _ in range(steps):
        run.step()
    run.engine.abort(doomed)
    other = run.add(request_of(folder, "stay"))
    run.run()
    assert run.tokens(other) and run.engine.schedule.embeddings.used_blocks == 0
    assert_nothing_held(run)


def broken_image(seed: int) -> bytes:
    """A JPEG whose header is fine and whose pixels are cut off."""
    stream = io.BytesIO()
    small_picture(seed, 200, 160).save(stream, "JPEG")
    return stream.getvalue()[:1500]


def test_a_broken_image_fails_its_requests_alone(folder: Path) -> None:
    """Red when a failed encode leaves pins or an entry behind, or takes the step's other requests with it."""
    bad, good = broken_image(2), small_picture(3)
    requests = [
        request_of(folder, "good ", good),
        request_of(folder, "bad ", bad),
        request_of(folder, "both ", good, bad),
        request_of(folder, "text"),
    ]
    run = driver(folder)
    numbers = [run.add(request) for request in requests]
    run.run()
    assert set(run.errors) == {numbers[1], numbers[2]}
    assert all(isinstance(error, MediaError) for error in run.errors.values())
    for index in (0, 3):
        assert run.tokens(numbers[index]) == plain_answer(folder, requests[index])
    assert_nothing_held(run)
    again = run.add(requests[1])
    run.run()
    assert again in run.errors


def test_a_failing_step_costs_its_requests_not_the_engine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = request_of(folder, "fails once ", small_picture(4))
    run = driver(folder)
    number = run.add(request)
    with monkeypatch.context() as patch:
        patch.setattr(run.engine.executor.worker, "_forward", lambda *_: (_ for _ in ()).throw(RuntimeError("device lost")))
        run.step()
    assert isinstance(run.errors[number], RuntimeError)
    assert_nothing_held(run)
    with monkeypatch.context() as patch:
        patch.setattr(
            run.engine.executor.worker.encodes, "encode_patches", lambda *_: (_ for _ in ()).throw(RuntimeError("no memory"))
        )
        other = run.add(request_of(folder, "fails too ", small_picture(5)))
        run.step()
    assert isinstance(run.errors[other], RuntimeError)
    assert_nothing_held(run)
    third = run.add(request)
    run.run()
    assert run.tokens(third) == plain_answer(folder, request)


def test_what_can_never_fit_is_refused(folder: Path) -> None:
    request = request_of(folder, small_picture(6, 300, 300), "large")
    run = sized_driver(folder, tokens=len(request) + 100, rows=8)
    with pytest.raises(PromptError, match="embedding rows"):
        run.add(request)
    run = sized_driver(folder, tokens=len(request), rows=1000)
    with pytest.raises(PromptError, match="pages"):
        run.add(request)
    assert_nothing_held(run)


def test_n_answers_share_the_prompt(folder: Path) -> None:
    """The prompt is computed once but for its last page; each answer has its own seed. Red when followers do not wait."""
    request = request_of(folder, "Dice, please: ", small_picture(7))
    run = driver(folder, page_size=4)
    number = run.add(request, tokens=20, n=4, temperature=1.0, seed=5)
    alone = run.add(request, tokens=20, temperature=1.0, seed=5, cache_salt="alone")
    run.run()
    answers = [run.tokens(number, index) for index in range(4)]
    assert len({tuple(answer) for answer in answers}) == 4
    assert answers[0] == run.tokens(alone)
    prompt_tokens = run.engine.counts.tokens - 5 * 19
    assert prompt_tokens <= 2 * len(request) + 3 * 4
    assert_nothing_held(run)


def test_stop_tokens_strings_and_min_tokens(folder: Path) -> None:
    request = request_of(folder, "Say a few things.")
    free = plain_answer(folder, request, 40)
    tokenizer = loaded(folder).tokenizer
    run = driver(folder)
    stop_token = free[5]
    first = free.index(stop_token)
    by_token = run.add(request, tokens=40, end_tokens=frozenset({stop_token}))
    later = run.add(request, tokens=40, end_tokens=frozenset({stop_token}), min_tokens=first + 2)
    just = run.add(request, tokens=40, end_tokens=frozenset({stop_token}), min_tokens=first)
    text = tokenizer.decode(free)
    stop = next(c for c in text[2:] if c.isascii() and c.isprintable())
    by_text = run.add(request, tokens=40, stop=(stop,))
    by_length = run.add(request, tokens=3)
    run.run()
    ended = {n: run.completions[n, 0] for n in (by_token, later, by_text, by_length)}
    assert list(ended[by_token].token_ids) == free[: first + 1] and ended[by_token].finish_reason == "stop"
    assert ended[by_token].text == tokenizer.decode(free[:first])
    assert run.tokens(just) == free[: first + 1], "the end token comes when so many others have come"
    assert len(ended[later].token_ids) > first + 1 and stop_token not in ended[later].token_ids[: first + 1]
    assert ended[by_text].text == text[: text.index(stop)] and ended[by_text].finish_reason == "stop"
    assert len(ended[by_length].token_ids) == 3 and ended[by_length].finish_reason == "length"


def test_logprobs_are_transformers(folder: Path) -> None:
    """Log-probabilities of the chosen tokens and of the best five, against transformers' logits."""
    request = request_of(folder, "How sure? ", small_picture(8))
    run = driver(folder)
    number = run.add(request, tokens=6, logprobs=True, top_logprobs=5)
    plain = run.add(request, tokens=6)
    run.run()
    answer = run.completions[number, 0]
    assert not run.completions[plain, 0].logprobs
    reference = oracle(folder, "qwen3-vl")
    (item,) = request.items
    from file_patches import make_patches

    full = make_patches(item, loaded(folder).processor.image, torch.device("cpu"), torch.float32, compact=False)
    rows = reference.rows(full, torch.tensor([item.grid]))
    logits = reference.logits_for_request(request, rows, list(answer.token_ids))[len(request) - 1 : -1]
    expected = logits.log_softmax(-1)
    for place, token in enumerate(answer.logprobs):
        assert token.token_id == answer.token_ids[place]
        assert token.logprob == pytest.approx(float(expected[place, token.token_id]), abs=2e-4)
        best = expected[place].topk(5)
        assert [t for t, _ in token.top] == best.indices.tolist()
        assert [p for _, p in token.top] == pytest.approx(best.values.tolist(), abs=2e-4)


def test_sampling_does_not_depend_on_the_company(folder: Path) -> None:
    """The same seed gives the same answer alone and in a crowd. Red when requests share a generator."""
    request = request_of(folder, "Roll.")
    alone, crowd = driver(folder), driver(folder)
    options = {"tokens": 20, "temperature": 1.0, "top_p": 0.9, "seed": 11}
    single = alone.add(request, **options)
    others = [crowd.add(request_of(folder, "x" * k), tokens=20, temperature=1.0, seed=k) for k in range(1, 5)]
    among = crowd.add(request, **options)
    alone.run()
    crowd.run()
    assert alone.tokens(single) == crowd.tokens(among)
    assert len({tuple(crowd.tokens(n)) for n in others}) == len(others)


def test_priorities(folder: Path) -> None:
    """One at a time: the urgent one that came last starts first of those that wait."""
    run = driver(folder, max_num_seqs=1)
    numbers = [run.add(request_of(folder, "x" * 9), priority=priority) for priority in (5, 5, 0)]
    finished: list[int] = []
    while run.engine.has_work:
        finished += [update.request_id for update in run.step() if update.last]
    assert finished == [numbers[2], numbers[0], numbers[1]]


def test_timings_and_counts(folder: Path) -> None:
    request = request_of(folder, small_picture(9), "How long?")
    run = driver(folder)
    number = run.add(request)
    run.run()
    timings = run.completions[number, 0].timings
    order = "fetch header prompt queue decode preprocess encode prefill first_token per_token total".split()
    assert list(timings) == order
    assert all(timings[stage] > 0 for stage in ("decode", "preprocess", "encode", "prefill", "first_token", "per_token"))
    parts = timings["queue"] + timings["decode"] + timings["preprocess"] + timings["encode"] + timings["prefill"]
    assert parts <= timings["first_token"] <= timings["total"]
    again = run.add(request)
    run.run()
    second = run.completions[again, 0]
    assert second.cached_tokens > 0 and second.timings["encode"] == second.timings["decode"] == 0.0


def test_a_request_is_not_changed(folder: Path) -> None:
    """Requests are shared between answers and retries; the engine must leave them as they are."""
    request = request_of(folder, "Keep ", small_picture(1), " me.")
    before = dataclasses.asdict(request)
    run = driver(folder, max_num_batched_tokens=5)
    run.add(request, n=2)
    run.run()
    after = dataclasses.asdict(request)
    assert before.keys() == after.keys() and isinstance(request, Request)
    assert all(str(before[name]) == str(after[name]) for name in before)


def test_the_prompt_alone_counts_as_prefill(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two chunks of a prompt, then tokens. Red when the step after the prompt counts too because its token is not read yet."""
    told: list[str] = []
    add = StageClock.add
    monkeypatch.setattr(StageClock, "add", lambda *arguments: (told.append(arguments[1]), add(*arguments))[1])
    request = request_of(folder, "Eighteen tokens or so.")
    run = driver(folder, max_num_batched_tokens=len(request) - 3)
    told.clear()
    run.add(request)
    run.run()
    assert [stage for stage in told if stage != "steps"] == ["prefill", "prefill"]
    assert told.count("steps") == run.engine.counts.steps > 2, "every step counts once as the device's work"
    assert run.engine.busy.seconds.keys() == {"steps"} and run.engine.busy.seconds["steps"] > 0


def test_with_overlap_tokens_are_told_a_step_late(folder: Path, overlap: bool) -> None:
    """Red when overlap is given up where nothing forbids it, or kept where the next token depends on what the host knows."""
    form = StructuredOutput("regex", "[a-z]{9}")
    ways = ({}, True), ({"repetition_penalty": 1.2}, True), ({"frequency_penalty": 0.1}, True), ({"structured": form}, False)
    for options, late in ways:
        compile_grammar(form, loaded(folder).tokenizer)  # so that nobody waits for it
        run = driver(folder)
        run.add(request_of(folder, "Soon."), tokens=3, **options)
        told = [len(run.step()) for _ in range(4)]
        assert told == ([0, 1, 1, 1] if overlap and late else [1, 1, 1, 0])
        assert not run.engine.has_work


@pytest.mark.parametrize("tokens", range(1, 7))
def test_all_that_is_computed_is_shared_and_nothing_is_computed_in_vain(folder: Path, tokens: int) -> None:
    """The last token of an answer is never computed, all before it are, once. Their pages stay, one that is not full, too, if
    it has two tokens or more. Red when a token after the last is computed because the last was in flight, or when a page that
    fills up late is not kept."""
    request = request_of(folder, "Pages of four.")
    run = driver(folder, page_size=4)
    run.add(request, tokens=tokens)
    run.run()
    computed = len(request) + tokens - 1
    assert run.engine.counts.tokens == computed
    assert run.engine.schedule.pages.tree_pages == computed // 4 + (computed % 4 > 1)
