"""LLM.chat end to end: every way to hand over an image gives one answer; limits and stops act."""

import asyncio
import base64
import dataclasses
import gc
import http.server
import io
import json
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sightline
from clips import make_clip
from media.pdfs import picture_pdf
from parity.conversations import picture
from parity.subject import Subject
from plain_loop import encode_items
from sightline import LLM, SamplingParams
from sightline.engine.sequence_output import SequenceOutput
from sightline.errors import ConfigError, MediaError, ParameterError, PromptError, PromptTooLongError

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


def test_options_of_the_template(llm: LLM, png: bytes) -> None:
    """Red if chat_template_kwargs do not reach the template, in chat or in a stream. Numbered pictures make a longer prompt."""
    numbered, plain = {"add_vision_id": True}, llm.chat(ask(png), GREEDY)
    longer = llm.chat([ask(png)], GREEDY, chat_template_kwargs=numbered)[0]
    assert longer.prompt_tokens > plain.prompt_tokens

    async def last() -> Any:
        return [update async for update in llm.stream(ask(png), GREEDY, chat_template_kwargs=numbered)][-1]

    assert asyncio.run(last()).completion.prompt_tokens == longer.prompt_tokens


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


def test_an_engine_goes_with_its_last_reference(tiny_checkpoints: dict[str, Path], png: bytes) -> None:
    """Red when a thread that nobody can close any more keeps a model for good."""
    llm = LLM(tiny_checkpoints["qwen3-vl"], device="cpu")
    assert llm.chat(ask(png), GREEDY).text
    engine, thread = weakref.ref(llm.engine), llm._thread._thread
    del llm
    gc.collect()
    thread.join(60)
    gc.collect()
    assert not thread.is_alive() and engine() is None


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


def test_an_error_in_a_batch_is_its_conversation_s_own(llm: LLM, png: bytes) -> None:
    """A broken image, one that is no image at all and a prompt that is too long among good requests: each has its error and no
    text, the others are answered. Alone, an error is raised."""
    stream = io.BytesIO()
    picture(200, 160, 9).save(stream, "JPEG")
    broken = stream.getvalue()[:1500]
    too_long = [{"role": "user", "content": "x" * 10_000_000}]
    answers = llm.chat([ask(png), ask(broken), ask(b"no picture"), too_long, ask(png, "Again?")], GREEDY)
    assert [type(answer.error) for answer in answers] == [type(None), MediaError, MediaError, PromptTooLongError, type(None)]
    assert [answer.finish_reason for answer in answers] == ["length", "error", "error", "error", "length"]
    assert [len(answer.token_ids) for answer in answers] == [12, 0, 0, 0, 12]
    assert not llm.engine.has_work
    both = llm.chat([ask(broken), ask(png)], SamplingParams(max_tokens=2, n=2))
    assert [(answer.index, answer.error is None) for answer in both] == [(0, False), (1, False), (0, True), (1, True)]
    with pytest.raises(MediaError):
        llm.chat(ask(broken), GREEDY)
    with pytest.raises(PromptError, match="top_k"):
        llm.chat([ask(png)], SamplingParams(top_k=-7))
    assert len(llm.chat(ask(png), GREEDY).token_ids) == 12


def test_prompts_as_vllm_has_them(llm: LLM, png: bytes) -> None:
    """An object with a prompt and its media gives what the same prompt gives otherwise; media are taken in the order of their
    placeholders."""
    clip = [picture(96, 64, seed) for seed in range(4)]
    parts = [
        {"type": "video", "video": clip},
        {"type": "image", "image": picture(900, 600, 5)},
        {"type": "text", "text": "What?"},
    ]
    prompt = llm.template.render([{"role": "user", "content": [{"type": part["type"], "text": "What?"} for part in parts]}])
    data = {"image": picture(900, 600, 5), "video": np.stack([np.asarray(frame) for frame in clip])}
    expected = llm.chat([{"role": "user", "content": parts}], GREEDY)
    answer = llm.generate({"prompt": prompt, "multi_modal_data": data}, GREEDY)
    assert answer.token_ids == expected.token_ids and answer.prompt_tokens == expected.prompt_tokens
    assert (answer.content, answer.reasoning) == (answer.text, None)
    smaller = {
        "prompt": prompt,
        "multi_modal_data": data,
        "mm_processor_kwargs": {"max_pixels": llm.processor.image.min_pixels},
    }
    fewer, same = llm.generate([smaller, {"prompt": prompt, "multi_modal_data": {**data, "video": [clip]}}], GREEDY)
    assert fewer.prompt_tokens < same.prompt_tokens == expected.prompt_tokens
    ids = llm.tokenizer.encode("Hello")
    assert llm.generate({"prompt_token_ids": ids}, GREEDY).token_ids == llm.generate("Hello", GREEDY).token_ids
    for wrong, said in (
        ({"text": "x"}, "'text'"),
        ({}, "either 'prompt' or"),
        ({"prompt": prompt, "multi_modal_data": {"audio": b""}}, "'audio'"),
        ({"prompt": "x", "multi_modal_data": {"image": png}}, "placeholders"),
        ({"prompt_token_ids": ids, "multi_modal_data": data}, "no media"),
    ):
        with pytest.raises(PromptError, match=said):
            llm.generate(wrong, GREEDY)


def test_achat(llm: LLM, png: bytes) -> None:
    """On an event loop, side by side; what is cancelled leaves nothing behind."""
    messages = [ask(png), [{"role": "user", "content": "Hello?"}]]

    async def both() -> list[Any]:
        return list(await asyncio.gather(llm.achat(messages[0], GREEDY), llm.achat(messages, GREEDY)))

    one, two = asyncio.run(both())
    assert [one.token_ids, two[1].token_ids] == [answer.token_ids for answer in llm.chat(messages, GREEDY)]
    assert two[0].token_ids == one.token_ids

    async def leave() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(llm.achat(messages[1], SamplingParams(max_tokens=4000, ignore_eos=True)), 0.3)

    asyncio.run(leave())
    assert not llm.engine.has_work


def test_answers_are_taken_apart(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reasoning and calls of an answer, whatever the model said: its words are put into its mouth here."""
    said = '<think>Hm.</think>Let me look. <tool_call>{"name": "zoom", "arguments": {"x": 3}}</tool_call>'
    monkeypatch.setattr("sightline.engine.sequence_output.SequenceOutput.completion", with_text(said))
    tools = [{"type": "function", "function": {"name": "zoom", "parameters": {}}}]
    hello = [{"role": "user", "content": "Hello?"}]
    answer = llm.chat(hello, GREEDY, tools=tools)
    assert (answer.content, answer.reasoning, answer.text) == ("Let me look.", "Hm.", said)
    (call,) = answer.tool_calls
    assert (call.name, json.loads(call.arguments)) == ("zoom", {"x": 3}) and call.id
    without = llm.chat(hello, GREEDY)
    assert without.tool_calls == () and without.content == said.removeprefix("<think>Hm.</think>")


def with_text(text: str) -> Any:
    completion = SequenceOutput.completion
    return lambda self, reason: dataclasses.replace(completion(self, reason), text=text)


def test_a_pdf_and_choices_of_a_call(llm: LLM, tmp_path: Path) -> None:
    """A file by its path, its bytes and as OpenAI's clients write it; sizes and frames for a call and for one medium."""
    path = tmp_path / "report.pdf"
    path.write_bytes(picture_pdf(picture(900, 600, 5), picture(900, 600, 6)))

    def about(part: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"role": "user", "content": [part, {"type": "text", "text": "What?"}]}]

    url = "data:application/pdf;base64," + base64.b64encode(path.read_bytes()).decode()
    files: list[Any] = [
        path,
        str(path),
        path.read_bytes(),
        {"file_data": url, "filename": "x.pdf"},
        {"file_url": path.as_uri()},
    ]
    answers = [llm.chat(about({"type": "file", "file": file}), GREEDY) for file in files]
    assert {answer.token_ids for answer in answers} == {answers[0].token_ids} and answers[0].media_items == 2
    sizes = {"max_pixels": llm.processor.image.min_pixels}
    few = llm.chat(about({"type": "file", "file": path}), GREEDY, mm_processor_kwargs=sizes)
    assert few.prompt_tokens < answers[0].prompt_tokens
    with pytest.raises(MediaError, match=r"PDF .*broken.pdf cannot be read: it is damaged"):
        (tmp_path / "broken.pdf").write_bytes(path.read_bytes()[:300])
        llm.chat(about({"type": "file", "file": tmp_path / "broken.pdf"}), GREEDY)
    clip = make_clip(24, fps=4)
    four = llm.chat(about({"type": "video", "video": clip, "num_frames": 4}), GREEDY)
    two = llm.chat(about({"type": "video", "video": clip}), GREEDY, media_io_kwargs={"video": {"num_frames": 2}})
    assert two.prompt_tokens < four.prompt_tokens < llm.chat(about({"type": "video", "video": clip}), GREEDY).prompt_tokens


def test_parameters_are_checked_when_made() -> None:
    for wrong, said in (({"max_tokens": "5"}, "max_tokens is '5'"), ({"top_p": 2}, "top_p is 2.0"), ({"n": 0}, "n is 0")):
        with pytest.raises(ParameterError, match=said):
            SamplingParams(**wrong)
    assert SamplingParams(stop="x").stop == ("x",)


def test_what_the_package_shows() -> None:
    assert dir(sightline) == sorted(sightline.__all__) and "LLM" in dir(sightline)
    assert all(getattr(sightline, name) is not None for name in dir(sightline))


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


def test_integrity_is_checked_when_idle(tiny_checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault in the state is found in the next idle moment, and said. Red when nobody looks."""
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
