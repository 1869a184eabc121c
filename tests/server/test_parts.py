"""Parts of the server by themselves: messages of the engine, names of media, the admission, keys, the text of tokens."""

import asyncio
import threading
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from starlette.datastructures import Headers

from prompt.builders import byte_tokenizer, image_item, video_item
from sightline.config import Config, ModelConfig, ServerConfig
from sightline.engine import messages
from sightline.engine.file_cache import FileCache, FileCacheIndex
from sightline.engine.messages import Add, Start, UpdateHead, add_frames, decode_command, decode_report, encode, submission_of
from sightline.errors import MissingMediaError
from sightline.sampling_params import resolve_sampling
from sightline.server.admission import AdmissionBudget, ClientGone
from sightline.server.auth import KeyRing
from sightline.server.body import UNREAD, Unread, read_body
from sightline.server.engine_client import EngineClient, UpdateQueue
from sightline.server.errors import ApiError
from sightline.server.media_names import MediaNames
from sightline.server.observer import Observer
from sightline.server.parse import MAX_VALUES, most_values, parse
from sightline.server.token_text import token_bytes
from sightline.submission import Submission
from sightline.types import Completion, MediaItem, MediaSpan, Request, SamplingParams, StructuredOutput, TokenLogprob, View


def with_bytes(item: MediaItem, data: bytes) -> MediaItem:
    return replace(item, ref=replace(item.ref, data=data))


def test_a_request_arrives_as_it_was_sent() -> None:
    """Every field of it: red when one is left out of the header or frames change places."""
    items = (with_bytes(image_item(2, 3), b"one"), with_bytes(video_item(2, 2, 2, 4.0), b"two"), image_item(1, 1, b"named"))
    whole = View((28, 60), (60, 60), (60, 60), resample="bilinear", colour=(0, 0, 0))
    tiles = View(resized=(28, 50), canvas=(28, 56), tile=(28, 28), offset=(0, 3), of=whole)
    items = (*items[:2], replace(items[2], views=(*items[2].views, tiles), grids=(*items[2].grids, (2, 2, 2))))
    assert items[2].patches == 4 + 8
    sent = Request(
        token_ids=np.arange(7, dtype=np.int32),
        positions=np.arange(21, dtype=np.int32).reshape(3, 7),
        position_delta=-3,
        items=items,
        spans=(MediaSpan(0, 1, 2, 0), MediaSpan(1, 4, 2, 1)),
    )
    params = SamplingParams(
        max_tokens=5, temperature=0.5, logit_bias={3: -1.5}, seed=-4, structured=StructuredOutput("regex", "a+", True)
    )
    sampling = resolve_sampling(params, {})
    asked = Submission(
        sent,
        sampling,
        end_tokens=frozenset((1, 2)),
        stop=("stop",),
        priority=-1,
        answer_returns=True,
        cache_salt="salt",
        affinity=b"beginning",
        seconds={"fetch": 0.5},
    )
    assert all(getattr(asked, field.name) != field.default for field in fields(asked)), "every field has something to lose"
    frames = add_frames(FileCacheIndex(0), 17, asked)
    assert np.shares_memory(frames[3], np.frombuffer(items[0].ref.data, np.uint8)), "the bytes of media are not copied"
    add = decode_command(*(frame if isinstance(frame, bytes) else frame.tobytes() for frame in frames))
    assert isinstance(add, Add) and add.number == 17
    arrived = submission_of(add, FileCache(0))
    got = arrived.request
    assert got.token_ids.tolist() == sent.token_ids.tolist() and got.positions.tolist() == sent.positions.tolist()
    assert (got.position_delta, got.items, got.spans) == (sent.position_delta, sent.items, sent.spans)
    assert replace(arrived, request=sent) == asked
    assert got.token_ids.flags.writeable, "torch warns of arrays that cannot be written"
    with pytest.raises(ValueError, match="bytes of 2 items for a request that has 3"):
        submission_of(msgspec.structs.replace(add, media=add.media[:-1]), FileCache(0))


def test_other_messages_arrive_as_they_were_sent() -> None:
    config = Config(
        model=ModelConfig(family_module=("a.b", "/c.py")), server=ServerConfig(api_key=("a", "b"), drain_timeout_s=3.5)
    )
    assert decode_command(encode(Start(config))) == Start(config)
    finish = messages.Finish("stop", 5, {"queue": 0.1}, 1, 1)
    logprob = TokenLogprob(3, -0.5, ((3, -0.5), (4, -2.0)))
    news = messages.News(
        (UpdateHead(1, 0, "text", (3,), (logprob,), finish), UpdateHead(2, 1, failure=messages.EngineFailure("invalid", "x")))
    )
    assert decode_report(encode(news)) == news


def test_the_end_of_an_answer_is_told_as_the_engine_noted_it() -> None:
    """Red when a field of the message has no counterpart in a Completion, or another value."""
    completion = Completion("text", (3, 4), "length", 5, {"queue": 0.1}, cached_tokens=1, media_items=2, encoded_items=1)
    finish = messages.Finish.of(completion)
    assert {name: getattr(completion, name) for name in finish.__struct_fields__} == msgspec.structs.asdict(finish)
    assert decode_report(encode(messages.News((UpdateHead(1, 0, finish=finish),)))).updates[0].finish == finish


def test_names_are_kept_per_caller_and_bounded() -> None:
    names = MediaNames(per_caller=2, callers=2)
    refs = [replace(image_item(1, 1, bytes([n])).ref, data=b"x") for n in range(4)]
    for number in range(3):
        names.remember("a", f"name {number}", refs[number])
    assert names.recall("a", "image", "name 2").digest == refs[2].digest
    assert names.recall("a", "image", "name 1").data == b"", "no bytes are kept"
    with pytest.raises(MissingMediaError):
        names.recall("a", "image", "name 0")
    names.remember("a", "name 3", refs[3])
    with pytest.raises(MissingMediaError):
        names.recall("a", "image", "name 2")  # name 1 was used last
    for caller, kind, name in (("b", "image", "name 3"), ("a", "video", "name 3")):
        with pytest.raises(MissingMediaError):
            names.recall(caller, kind, name)  # type: ignore[arg-type]
    names.remember("b", "n", refs[0])
    names.remember("c", "n", refs[0])
    with pytest.raises(MissingMediaError):
        names.recall("a", "image", "name 3")


def test_memory_of_large_bodies_is_given_back_when_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red if gigabytes stay with the allocator, or if it is asked for them while others work, or after every small request."""
    asked: list[float] = []
    done = threading.Event()
    monkeypatch.setattr("sightline.server.admission.give_freed_memory_back", lambda: (asked.append(1), done.set()))
    admission = AdmissionBudget(1000, 9)
    with admission.open() as small:
        asyncio.run(small.reserve(10**8))
    assert not asked
    with admission.open():
        with admission.open() as large:
            asyncio.run(large.reserve(9 * 10**8))
        assert not asked and not done.wait(0.2)
    assert done.wait(10)
    with admission.open() as again:
        asyncio.run(again.reserve(10))
    assert len(asked) == 1


def body_of(*turns: list[bytes], gone: bool = False) -> Any:
    """A scope and its messages, as http_protocol.py has them: what came in one turn of the event loop after another."""
    unread: list[bytes] = []
    left = list(turns)

    async def receive() -> Any:
        if not left:
            return {"type": "http.disconnect"}
        unread.extend(left.pop(0))
        return {"type": "http.request", "body": b"", "more_body": bool(left) or gone}

    return {"extensions": {UNREAD: Unread(unread)}}, receive


def test_small_parts_of_a_body_are_put_together() -> None:
    """Red if each of many tiny parts is kept: they would take fifty times the memory that is counted."""
    large, many = bytes(70_000), [[b"ab"] * 3 for _ in range(1000)]
    turns = [*many, [large], [b"c"], *many, [large, large, b"d"]]
    with AdmissionBudget(10, 1).open() as entry:
        parts = asyncio.run(read_body(*body_of(*turns), entry, None, 10, 60))
    assert b"".join(parts) == b"".join(part for turn in turns for part in turn)
    assert [len(part) for part in parts] == [6000, 70_000, 6001, 70_000, 70_000, 1]
    assert parts[1] is large  # not copied


def test_bodies_are_read_within_limits() -> None:
    admission = AdmissionBudget(1, 1)
    with admission.open() as entry:
        assert asyncio.run(read_body(*body_of([b"a", b"b"], [], [b"c"]), entry, None, 1e-5, 60)) == [b"abc"]
        assert admission.bytes == 3
        with pytest.raises(ApiError) as caught:
            asyncio.run(read_body(*body_of([b"0123", b"456"], [b"7890"], [b"x"]), entry, None, 1e-5, 60))
        assert caught.value.status == 413
        assert admission.bytes == 3 + 10
        with pytest.raises(ClientGone):
            asyncio.run(read_body(*body_of([b"ab"], gone=True), entry, None, 1, 60))
    assert admission.bytes == 0


def test_bodies_of_too_many_values_are_refused_unread() -> None:
    """Red when values in the last, incomplete piece of a body are not counted, or those of some kind."""
    decoder = msgspec.json.Decoder()
    most = b"[" + b"1," * (MAX_VALUES - 2) + b"[1]]"
    assert len(parse(most, decoder)) == MAX_VALUES - 1
    for more in (most[:-4] + b"[1],2]", most[:-4] + b"[[1]]]", most[:-4] + b'[{"a":1}]]', b"[" * (MAX_VALUES + 1)):
        with pytest.raises(ApiError, match="more than the 1,000,000 values"):
            parse(more, decoder)
    with pytest.raises(ApiError, match="not valid JSON"):
        parse(b"[" * MAX_VALUES, decoder)


def test_values_are_counted_around_long_data_urls() -> None:
    url = b'"data:image/png;base64,' + b"A,[{" * 50_000 + b'"'
    assert most_values(b"[1," + url + b",2]") == 3
    assert most_values(b"[1," + url[:-1]) > 100_000, "a string without an end is no string"
    assert most_values(b"[1," + url.replace(b"data:", b"date:") + b"]") > 100_000, "other long strings are counted"


@pytest.mark.parametrize(
    "body",
    [
        b'["data:",' + b"1," * 50_000 + b'1, "x"]',  # a short one before many values
        b'["x\\"data:",' + b"1," * 50_000 + b'1, "x"]',  # inside another string
        b'["x\\\\", "data:' + b"A" * 100_000 + b'", ' + b"1," * 50_000 + b"1]",  # a string that ends with a backslash
        b'["data:' + b"\\\\" * 50_000 + b'\\"", ' + b"1," * 50_000 + b'"x"]',
        b'["data:' + b"A" * 100_000 + b'\\",' + b"1," * 50_000 + b'1"]',  # all of it a string
    ],
)
def test_nothing_hides_values_from_the_count(body: bytes) -> None:
    """Red when a body can make the parser make more values than were counted."""
    assert most_values(body) >= body.count(b"1,") or len(msgspec.json.decode(body)) == 1


def test_keys() -> None:
    ring = KeyRing(("one", "two"), "admin")

    def header(text: str) -> Headers:
        return Headers({"authorization": text})

    assert ring.caller(header("Bearer one")) != ring.caller(header("Bearer two"))
    assert "one" not in ring.caller(header("bearer one"))
    for wrong in ("", "one", "Basic one", "Bearer", "Bearer onetwo", "Bearer o"):
        with pytest.raises(ApiError) as caught:
            ring.caller(header(wrong))
        assert caught.value.status == 401
    assert KeyRing(("schlüssel",), None).caller(Headers(raw=[(b"authorization", "Bearer schlüssel".encode())]))
    ring.require_admin(header("Bearer admin"))
    with pytest.raises(ApiError):
        ring.require_admin(header("Bearer one"))
    assert KeyRing((), None).caller(Headers({})) == ""
    with pytest.raises(ApiError) as caught:
        KeyRing((), None).require_admin(header("Bearer "))
    assert caught.value.status == 403


def test_bytes_of_tokens(tmp_path: Path) -> None:
    """Parts of characters have bytes and no text."""
    tokenizer = byte_tokenizer(tmp_path, "qwen3-vl")
    ids = tokenizer.encode("aü日<|im_end|>")
    assert b"".join(bytes(token_bytes(tokenizer, token) or ()) for token in ids) == "aü日<|im_end|>".encode()


def test_news_of_several_prompts_have_their_places() -> None:
    async def collect() -> list[tuple[int, str]]:
        engine = EngineClient(Config(), Observer(), lambda _: None, lambda _: None, lambda _: None)
        answers = UpdateQueue({7: 0, 9: 2}, left=3, engine=engine)
        end = messages.Finish("stop", 1, {})
        for update in (UpdateHead(9, 0, "c"), UpdateHead(7, 1, "b", finish=end), UpdateHead(7, 0, "a", finish=end)):
            answers.tell(update)
        found = []
        async for batch in answers.batches():
            found += [(place, update.text) for place, update in batch]
            if answers.left == 1:
                answers.tell(UpdateHead(9, 0, "d", finish=end))
        return found

    assert asyncio.run(collect()) == [(2, "c"), (1, "b"), (0, "a"), (2, "d")]
