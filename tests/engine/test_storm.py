"""Everything at once through the real engine, on a CPU made to behave like a device: requests come, go, fail and fall back.

Steps overlap and are graphs, images are encoded asynchronously, memory is for two or three requests, and at random

    a launched step is done before the next launch, or not
    rows that are encoded asynchronously are there only some steps later, and not a number until then
    a step cannot be launched, or cannot be read; a request is aborted; the caches are told to forget

Each answer is that of an engine that does one thing at a time, and in the end nothing is held.
"""

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from engine.harness import Driver, driver, plain_answer, request_of, sized_driver, small_picture
from engine.later import encode_later
from engine.test_lifecycle import assert_nothing_held, broken_image
from ops.run_again import run_again
from sightline.errors import MediaError
from sightline.media.decode import decode_image
from sightline.ops.attention import paged_attention
from sightline.ops.dispatch import Implementation
from sightline.types import Completion, Request, StructuredOutput
from sightline.worker.readout import Readout
from sightline.worker.step_graphs import StepGraphs
from worker.test_step_graphs import attention_by_device

WORD = StructuredOutput("regex", r"[a-f]{2,5}(-[0-9]{1,3}){1,4}")
WAYS: list[dict[str, Any]] = [  # to answer
    {"tokens": 1},
    {"tokens": 12},
    {"tokens": 25},
    {"tokens": 20, "temperature": 1.0, "top_p": 0.9, "seed": 3, "n": 3},
    {"tokens": 9, "n": 2, "temperature": 0.7, "top_k": 20, "seed": 4},
    {"tokens": 15, "repetition_penalty": 1.4, "frequency_penalty": 0.5},
    {"tokens": 30, "structured": WORD, "temperature": 1.0, "seed": 5},
    {"tokens": 18, "logprobs": True, "top_logprobs": 3},
    {"tokens": 24, "ends": True, "min_tokens": 5, "temperature": 1.0, "seed": 6},
    {"tokens": 24, "ends": True, "temperature": 1.0, "seed": 7, "presence_penalty": 0.3, "n": 2},
]
PROMPTS = 9


@cache
def prompt(folder: Path, number: int) -> Request:
    one, two, large = small_picture(1), small_picture(2, 60, 130), small_picture(3, 128, 128)
    return [
        lambda: request_of(folder, "One ", one, " two ", two, " three"),
        lambda: request_of(folder, one, "What is this?"),
        lambda: request_of(folder, "Plain text, no picture at all, and somewhat longer than the others are."),
        lambda: request_of(folder, "At the end ", two),
        lambda: request_of(folder, one, one, "Twice the same."),
        lambda: request_of(folder, "Large: ", large),
        lambda: request_of(folder, "Plain text, no picture at all, and now it ends otherwise."),
        lambda: request_of(folder, "Also broken, after ", one, broken_image(2), "?"),
        lambda: request_of(folder, broken_image(2), "Broken."),
    ][number]()


def broken(number: int) -> bool:
    return number >= PROMPTS - 2


def ask(run: Driver, folder: Path, number: int, way: dict[str, Any]) -> int:
    options = dict(way)
    if options.pop("ends", False):
        options["end_tokens"] = frozenset(range(0, 320, 9))
        options["stop"] = ("q", "Z")
    return run.add(prompt(folder, number), **options)


@cache
def expected(folder: Path, number: int, way: int) -> list[Completion]:
    """What an engine says that has all the room and does one thing after another, which test_equality.py compares."""
    run = driver(folder, overlap=False, async_encode=False, enable_prefix_caching=False)
    request_id = ask(run, folder, number, WAYS[way])
    run.run()
    return [run.completions[request_id, index] for index in range(WAYS[way].get("n", 1))]


class Storm:
    """An engine in bad weather."""

    def __init__(self, folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.chance, self.folder = random.Random(seed), folder
        chance = self.chance
        prompts = [prompt(folder, number) for number in range(PROMPTS)]
        longest = max(len(asked) for asked in prompts) + 30
        largest = max(item.rows for asked in prompts for item in asked.items)  # whatever the family's patches
        tokens, rows = int(longest * chance.choice((1, 1.5, 3))), largest + chance.choice((0, 8, 32))
        drawn = {
            "page_size": chance.choice((2, 4, 16)),
            "max_num_seqs": chance.choice((3, 6, 12)),
            "max_num_batched_tokens": chance.choice((6, 40, 400)),
            "max_patches_per_step": chance.choice((70, 4096)),
            "lookahead_patches": chance.choice((0, 100)),
            "starvation_steps": chance.choice((5, 512)),
            "embedding_host_cache_gb": chance.choice((0, 2e-5, 0.01)),
        }
        self.run = sized_driver(folder, tokens, rows, **{**drawn, "overlap": True, "async_encode": True, **settings})
        engine, runner, limits = self.run.engine, self.run.engine.executor.worker, self.run.engine.schedule.limits
        for layer in runner.caches:
            layer.keys.fill_(float("nan"))
            layer.values.fill_(float("nan"))
        runner.step_graphs = StepGraphs(
            runner.model,
            runner.caches,
            runner.arena.rows,
            runner._sampled,
            run_again,
            limits.max_sequences,
            limits.max_tokens,
            engine.max_model_len,
        )
        forward, read = runner._forward, Readout.read

        def forward_or_fail(*arguments: Any) -> Any:
            when = chance.random()
            if when < self.faults:
                raise RuntimeError("lost before")
            done = forward(*arguments)
            if when > 1 - self.faults:
                raise RuntimeError("lost after")
            return done

        def read_or_fail(readout: Readout) -> Any:
            if chance.random() < self.faults:
                raise RuntimeError("lost on the way")
            return read(readout)

        self.faults = chance.choice((0.0, 0.0, 0.01))
        monkeypatch.setattr(
            paged_attention, "kernels", [Implementation("by device", attention_by_device, lambda *_, **__: True, True)]
        )
        encode_later(runner.encodes, monkeypatch, lambda: chance.randrange(5))
        monkeypatch.setattr(runner, "_forward", forward_or_fail)
        monkeypatch.setattr(Readout, "read", read_or_fail)
        monkeypatch.setattr(Readout, "ready", property(lambda _: chance.random() < 0.4))
        self.asked: dict[int, tuple[int, int]] = {}
        self.aborted: set[int] = set()
        self.flushes = 0

    def rage(self, requests: int) -> None:
        chance, run = self.chance, self.run
        while requests or run.engine.has_work:
            while requests and (not run.engine.has_work or chance.random() < 0.25):
                requests -= 1
                number, way = chance.randrange(PROMPTS), chance.randrange(len(WAYS))
                options = {"priority": chance.choice((0, 0, 1)), "cache_salt": chance.choice(("", "", "b"))}
                self.asked[ask(run, self.folder, number, {**WAYS[way], **options})] = (number, way)
            if chance.random() < 0.03 and run.engine._requests:
                gone = chance.choice(list(run.engine._requests))
                assert run.engine.abort(gone)
                self.aborted.add(gone)
                run.engine.check_integrity()
            if chance.random() < 0.01:
                run.engine.flush()
                self.flushes += 1
            if chance.random() < 0.01:
                (item,) = prompt(self.folder, 5).items
                rows = run.engine.embed(item, decode_image(item.ref)[None])
                assert rows is not None and rows.isfinite().all()
            run.step()
            assert run.steps < 20_000

    def check(self) -> None:
        run = self.run
        for request_id, (number, way) in self.asked.items():
            if request_id in self.aborted:
                continue
            error = run.errors.get(request_id)
            if error is not None and "lost" in str(error):
                assert self.faults
            elif broken(number):
                assert isinstance(error, MediaError), (number, way, error)
            else:
                assert error is None, error
                for index, right in enumerate(expected(self.folder, number, way)):
                    compare(run.completions[request_id, index], right)
                    # A follower whose leader ended, and whose prompt was forgotten before it could start, begins anew.
                    forgotten = index > 0 and (self.flushes or run.engine.schedule.pages.evictions)
                    if not run.engine.schedule.preemptions and not forgotten:
                        assert run.completions[request_id, index].encoded_items <= right.encoded_items
                if not WAYS[way].keys() - {"tokens", "logprobs", "top_logprobs"}:
                    count = WAYS[way]["tokens"]
                    assert run.tokens(request_id) == plain_answer(self.folder, prompt(self.folder, number), count)
        run.engine._take_encodes(wait=True)  # what is still encoded for nobody
        assert not run.engine.schedule.encoding and not run.engine.executor.worker.encodes._asynchronous
        assert not run.engine._answers and not run.engine._requests and not run.engine._in_flight
        assert_nothing_held(run)
        cache = run.engine.schedule.embeddings
        assert cache.evictable_blocks + cache.free_blocks == cache.blocks


def compare(found: Completion, right: Completion) -> None:
    assert found.token_ids == right.token_ids
    assert (found.text, found.finish_reason, found.index) == (right.text, right.finish_reason, right.index)
    assert [token.token_id for token in found.logprobs] == [token.token_id for token in right.logprobs]
    for one, other in zip(found.logprobs, right.logprobs, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert [place for place, _ in one.top] == [place for place, _ in other.top]


@pytest.mark.parametrize("seed", range(5))
def test_storm(tiny_checkpoints: dict[str, Path], seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    storm = Storm(tiny_checkpoints["qwen3-vl"], seed, monkeypatch)
    storm.rage(25)
    monkeypatch.undo()
    storm.check()


def test_a_launch_that_fails_while_one_was_preempted(
    tiny_checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red if the step before stays in flight then: who lost its place starts again before its newest token is known."""
    storm = Storm(tiny_checkpoints["qwen3-vl"], 21, monkeypatch, embedding_host_cache_gb=0.0)
    storm.rage(25)


@pytest.mark.parametrize("seed", [5, 6, 7])
def test_storm_without_a_cache_of_embeddings(
    tiny_checkpoints: dict[str, Path], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red when embeddings that a request still needs go with another one, or some stay behind."""
    without = {"embedding_cache_gb": 0.0, "embedding_host_cache_gb": 0.0}
    storm = Storm(tiny_checkpoints["qwen3-vl"], seed, monkeypatch, **without)
    storm.rage(25)
    monkeypatch.undo()
    storm.check()
    assert storm.run.engine.schedule.embeddings.used_blocks == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 160))
@pytest.mark.parametrize("family", ["qwen3-vl", "qwen2.5-vl"])
def test_long_storm(tiny_checkpoints: dict[str, Path], family: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    storm = Storm(tiny_checkpoints[family], seed, monkeypatch)
    storm.rage(60)
    monkeypatch.undo()
    storm.check()
