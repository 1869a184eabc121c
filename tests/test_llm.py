"""LLM.chat end to end: every way to hand over an image gives one answer; limits and stops act."""

import asyncio
import base64
import http.server
import io
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from parity.conversations import picture
from parity.subject import Subject
from plain_loop import encode_items
from sightline import LLM, SamplingParams
from sightline.errors import ConfigError, MediaError, PromptError

GREEDY = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tiny_checkpoints: dict[str, Path]) -> Iterator[LLM]:
    # one source of a test is a server on this machine
    with LLM(tiny_checkpoints["qwen3-vl"], device="cpu", allow_private_media=True, allowed_media_ports=()) as made:
        yield made


@pytest.fixture(scope="module")
def png() -> bytes:
    stream = io.BytesIO()
    picture(130, 70, 5).save(stream, "PNG")
    return stream.getvalue()


def ask(image: Any, text: str = "What?") -> list[dict[str, Any]]:
    part = {"type": "image_url", "image_url": {"url": image}} if isinstance(image, str) else {"type": "image", "image": image}
    return [{"role": "user", "content": [part, {"type": "text", "text": text}]}]


@pytest.fixture
def served(png: bytes) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(png)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/image"
    server.shutdown()
    thread.join()
    server.server_close()


def test_every_source_gives_the_same_answer(llm: LLM, png: bytes, tmp_path: Path, served: str) -> None:
    path = tmp_path / "image.png"
    path.write_bytes(png)
    sources = [png, path, str(path), path.as_uri(), picture(130, 70, 5), served]
    sources.append("data:image/png;base64," + base64.b64encode(png).decode())
    answers = [llm.chat(ask(source), GREEDY) for source in sources]
    assert len(answers[0].token_ids) == 12
    assert {answer.token_ids for answer in answers} == {answers[0].token_ids}
    assert llm.chat(ask(picture(130, 70, 6)), GREEDY).token_ids != answers[0].token_ids


def test_a_list_of_conversations(llm: LLM, png: bytes) -> None:
    first, second = ask(png), [{"role": "user", "content": "No picture."}]
    answers = llm.chat([first, second], GREEDY)
    assert [a.token_ids for a in answers] == [llm.chat(c, GREEDY).token_ids for c in (first, second)]


def test_end_tokens_of_the_generation_config(llm: LLM, png: bytes) -> None:
    """An end token ends the answer and leaves no text; with ignore_eos it does not."""
    tokens = llm.chat(ask(png), GREEDY).token_ids
    third = tokens[2]
    first = tokens.index(third)
    stopped = llm.chat(ask(png), SamplingParams(max_tokens=12, temperature=0, ignore_eos=True, stop_token_ids=(third,)))
    assert stopped.token_ids == tokens[: first + 1] and stopped.finish_reason == "stop"
    assert set(llm.defaults.eos_token_ids) == {llm.tokenizer.id_of("<|im_end|>"), llm.tokenizer.id_of("<|endoftext|>")}


def test_stop_strings_cut_the_text(llm: LLM) -> None:
    messages = [{"role": "user", "content": "Say something."}]
    free = llm.chat(messages, SamplingParams(max_tokens=40, temperature=0, ignore_eos=True))
    stop = next(c for c in free.text[1:] if c.isascii() and c.isprintable())
    cut = llm.chat(messages, SamplingParams(max_tokens=40, temperature=0, ignore_eos=True, stop=(stop,)))
    assert cut.finish_reason == "stop" and cut.text == free.text[: free.text.index(stop)]


def test_the_context_length_bounds_prompt_and_answer(tiny_checkpoints: dict[str, Path]) -> None:
    llm = LLM(tiny_checkpoints["qwen3-vl"], device="cpu", max_model_len=64)
    messages = [{"role": "user", "content": "x" * 30}]
    answer = llm.chat(messages, SamplingParams(max_tokens=1000, temperature=0, ignore_eos=True))
    assert answer.prompt_tokens + len(answer.token_ids) == 64 and answer.finish_reason == "length"
    with pytest.raises(PromptError, match="63"):
        llm.chat([{"role": "user", "content": "x" * 60}])


def test_seeds(llm: LLM) -> None:
    messages = [{"role": "user", "content": "Dice."}]
    params = [SamplingParams(max_tokens=20, temperature=1.0, seed=seed) for seed in (1, 1, 2)]
    first, second, other = (llm.chat(messages, p).token_ids for p in params)
    assert first == second != other


def test_settings_by_name(tiny_checkpoints: dict[str, Path], png: bytes) -> None:
    small = LLM(tiny_checkpoints["qwen3-vl"], device="cpu", min_pixels=4096, max_pixels=8192)
    assert (
        small.chat(ask(png), GREEDY).prompt_tokens
        < LLM(tiny_checkpoints["qwen3-vl"], device="cpu").chat(ask(png), GREEDY).prompt_tokens
    )
    with pytest.raises(ConfigError, match="colour"):
        LLM(tiny_checkpoints["qwen3-vl"], colour="red")


def test_generate_continues_a_raw_prompt(llm: LLM, png: bytes) -> None:
    """The rendered chat as a raw prompt gives the chat's answer; a list of prompts gives a list."""
    prompt = llm.template.render([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}]}])
    answer = llm.generate(prompt, GREEDY, media=[("image", png)])
    assert answer.token_ids == llm.chat(ask(png), GREEDY).token_ids
    several = llm.generate([prompt, "No picture."], GREEDY, media=[[("image", png)], []], progress=True)
    assert several[0].token_ids == answer.token_ids and len(several) == 2
    with pytest.raises(PromptError, match="2 prompts"):
        llm.generate(["a", "b"], GREEDY, media=[[]])
    with pytest.raises(PromptError):
        llm.generate("no placeholder", GREEDY, media=[("image", png)])


def test_n_answers(llm: LLM, png: bytes) -> None:
    params = SamplingParams(max_tokens=10, temperature=1.0, n=3, seed=3, ignore_eos=True)
    answers = llm.chat(ask(png), params)
    assert isinstance(answers, list) and [a.index for a in answers] == [0, 1, 2]
    assert len({a.token_ids for a in answers}) == 3


def test_embed_images(llm: LLM, png: bytes) -> None:
    """Rows equal the tower's own for that image, and do not depend on company."""
    request = Subject.request_of(llm, ask(png))
    expected = encode_items(llm.model, request, llm.processor)
    assert expected is not None
    first, other = llm.embed_images([png, picture(900, 60, 1)])
    assert first.shape == (request.items[0].rows, llm.spec.text.hidden_size)
    torch.testing.assert_close(first, expected[:, : llm.spec.text.hidden_size], atol=1e-5, rtol=0)
    assert other.shape != first.shape
    with pytest.raises(MediaError):
        llm.embed_images([png[:200]])


def test_stream(llm: LLM, png: bytes) -> None:
    """Deltas join to the text; several streams run side by side; the last update carries the whole answer."""

    async def collect(messages: list[dict[str, Any]]) -> tuple[str, Any]:
        parts, final = [], None
        async for update in llm.stream(messages, GREEDY):
            parts.append(update.text)
            final = update.completion
        return "".join(parts), final

    async def both() -> list[tuple[str, Any]]:
        return list(await asyncio.gather(collect(ask(png)), collect([{"role": "user", "content": "Hello?"}])))

    results = asyncio.run(both())
    for (text, completion), messages in zip(results, (ask(png), [{"role": "user", "content": "Hello?"}]), strict=True):
        assert completion.text == text == llm.chat(messages, GREEDY).text
        assert len(completion.token_ids) == 12


def test_leaving_a_stream_aborts_it(llm: LLM) -> None:
    """Red when an abandoned request goes on holding pages."""

    async def leave() -> None:
        stream = llm.stream([{"role": "user", "content": "Long."}], SamplingParams(max_tokens=4000, ignore_eos=True))
        async for _ in stream:
            break
        await stream.aclose()

    asyncio.run(leave())
    assert not llm.engine.has_work
    assert llm.engine.schedule.pages.private_pages == 0


def test_errors_in_a_batch_leave_nothing_behind(llm: LLM, png: bytes) -> None:
    """One broken image among good requests: its error is raised, the others are aborted, the engine goes on."""
    stream = io.BytesIO()
    picture(200, 160, 9).save(stream, "JPEG")
    broken = stream.getvalue()[:1500]
    with pytest.raises(MediaError):
        llm.chat([ask(png), ask(broken), ask(png, "Again?")], GREEDY)
    assert not llm.engine.has_work
    assert len(llm.chat(ask(png), GREEDY).token_ids) == 12


def test_a_closed_model_says_so(tiny_checkpoints: dict[str, Path]) -> None:
    llm = LLM(tiny_checkpoints["qwen3-vl"], device="cpu")
    llm.close()
    llm.close()
    with pytest.raises(ConfigError, match="closed"):
        llm.chat([{"role": "user", "content": "Hello?"}], GREEDY)


def test_a_bug_in_a_step_reaches_those_who_wait(tiny_checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when an exception ends the engine's thread silently: the caller would wait for ever."""
    with LLM(tiny_checkpoints["qwen3-vl"], device="cpu") as llm:
        monkeypatch.setattr(llm.engine, "step", lambda: 1 / 0)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="ZeroDivisionError"):
                llm.chat([{"role": "user", "content": "Hello?"}], GREEDY)


def test_books_are_checked_when_idle(tiny_checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault in the books is found in the next idle moment, and said. Red when nobody looks."""
    monkeypatch.setattr("sightline.engine.thread.CHECK_EVERY_S", 0.0)
    with LLM(tiny_checkpoints["qwen3-vl"], device="cpu") as llm:
        hello = [{"role": "user", "content": "Hello?"}]
        llm.chat(hello, GREEDY)
        llm._thread.call(lambda: llm.engine.schedule.pages.allocate(1))  # a page that nobody holds
        with pytest.raises(RuntimeError, match="The engine failed"):
            for _ in range(50):  # the next idle moment comes when the queue is empty
                time.sleep(0.1)
                llm.chat(hello, GREEDY)


def test_decode_threads(tiny_checkpoints: dict[str, Path], png: bytes, llm: LLM) -> None:
    """Any number gives the same answers; none at all is refused."""
    with LLM(tiny_checkpoints["qwen3-vl"], device="cpu", decode_threads=1) as one:
        several = [ask(png), ask(png, "Why?")]
        assert [a.token_ids for a in one.chat(several, GREEDY)] == [a.token_ids for a in llm.chat(several, GREEDY)]
    with pytest.raises(ConfigError, match="decode_threads is 0, but must be at least 1"):
        LLM(tiny_checkpoints["qwen3-vl"], device="cpu", decode_threads=0)
