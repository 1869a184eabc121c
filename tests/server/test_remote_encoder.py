"""A server whose images another one encodes, with real processes: equal answers, whatever is killed."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest

from clips import make_clip
from media.pdfs import pdf
from server.media import image_part, jpeg, png, text_part
from server.running import ADMIN, PATIENCE_S, SERVE, RunningServer, running, wait_for
from server.test_files_and_frames import file_part, video_part
from sightline.config import Config, EncoderConfig, EngineConfig, MediaConfig, ModelConfig, ServerConfig
from sightline.engine.remote.wire import EncodeHead, Identity, RowsHead, check_rows, pack, unpack
from sightline.errors import ConfigError
from sightline.llm import LLM
from sightline.media.item import item_of
from sightline.media.source import load_image
from sightline.models.files import read_model_files
from sightline.types import MediaItem, SamplingParams

KEY = "the-encoder-key"
QUESTION = "What is it?"
NOT_LET_IN = "that server does not accept encoder_api_key (status 401)"
UNFIT = "that server cannot encode for this one:"


def encoder_flags(port: int = 0) -> tuple[str, ...]:
    return ("--encoder-only", "--api-key", KEY, "--port", str(port), "--restart-backoff-s", "0.2", "--decode-threads", "1")


def using(encoder: RunningServer, *more: str) -> tuple[str, ...]:
    return ("--encoder-url", encoder.url, "--encoder-api-key", KEY, "--decode-threads", "1", *more)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running(tmp_path_factory.mktemp("encoder"), *encoder_flags(), key=KEY) as made:
        yield made


@pytest.fixture(scope="module")
def language(encoder: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running(tmp_path_factory.mktemp("language"), *using(encoder)) as made:
        yield made


def ask(server: RunningServer, *parts: dict[str, Any], **fields: Any) -> str:
    return str(server.chat([*parts, text_part(QUESTION)], **fields).choices[0].message.content)


def counts(server: RunningServer) -> dict[str, int]:
    return {name: value for name, value in server.stats().items() if "encode" in name}


def test_answers_are_those_of_a_server_that_encodes_itself(
    server: RunningServer, language: RunningServer, encoder: RunningServer
) -> None:
    """Red when a token differs, when the tower here had anything to do, or what was encoded is asked for again."""
    sized = image_part(png(908, 512, 384))
    sized["image_url"]["max_pixels"] = 40_000
    asked = [[image_part(seed)] for seed in range(900, 904)]
    asked += [[image_part(904), image_part(905)], [image_part(jpeg(906))], [video_part(make_clip(12, seed=907))]]
    asked += [[sized], [image_part(900)]]  # the last is known
    before, there = counts(language), encoder.stats()["items_encoded"]
    for parts in asked:
        assert ask(language, *parts) == ask(server, *parts)
    after = counts(language)
    assert after["items_encoded"] == before["items_encoded"] and after["patches_encoded"] == before["patches_encoded"]
    assert after["encoder_encoded"] - before["encoder_encoded"] == 9 and after["encoder_up"] == 1
    assert encoder.stats()["items_encoded"] - there == 9
    metrics = language.http.get("/metrics").text
    assert f'sightline:encoder_items_total{{outcome="encoded"}} {after["encoder_encoded"]:.1f}' in metrics
    assert "sightline:encoder_up 1.0" in metrics


def test_a_page_of_a_pdf_is_encoded_here(server: RunningServer, language: RunningServer) -> None:
    part = file_part(pdf((200, 100)))
    before = counts(language)
    assert ask(language, part) == ask(server, part)
    after = counts(language)
    assert after["items_encoded"] - before["items_encoded"] == 1 and after["encoder_encoded"] == before["encoder_encoded"]


def test_an_encoder_answers_no_chats_and_says_so(encoder: RunningServer) -> None:
    """It holds no language model: less than the tower's share of the weights, and no pages."""
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"):
        answer = encoder.post(path, messages=[])
        assert answer.status_code == 404 and "encoder_only" in answer.json()["error"]["message"], answer.text
    assert "keys and values" not in encoder.errors and "it encodes images and videos for other servers" in encoder.errors
    assert encoder.http.get("/v1/models").json()["data"] and encoder.http.get("/ready").status_code == 200


# ---- Who asks, and what for


def identity_of(encoder: RunningServer) -> Identity:
    return msgspec.json.decode(encoder.http.get("/v1/encoder").content, type=Identity)


def picture(seed: int) -> MediaItem:
    ref = load_image(png(seed), MediaConfig())
    return item_of(ref, read_model_files(ModelConfig(), MediaConfig()).processor)


def encode(encoder: RunningServer, item: MediaItem, identity: str | None = None, **options: Any) -> httpx.Response:
    head = pack(EncodeHead(identity or identity_of(encoder).name, item.without_bytes()))
    return encoder.http.post("/v1/encoder/encode", content=head + item.ref.data, **options)


def test_strangers_get_nothing(encoder: RunningServer) -> None:
    stranger = {"Authorization": "Bearer other"}
    assert encoder.http.get("/v1/encoder", headers=stranger).status_code == 401
    assert encode(encoder, picture(920), headers=stranger).status_code == 401


def test_messages_that_are_none_are_refused_and_harm_nobody(encoder: RunningServer) -> None:
    """What the other server sends may be anything: it is checked against the file, and the model's own limits."""
    item = picture(921)
    wrong = {
        "another file": replace(item, ref=replace(item.ref, data=png(922))),
        "another header": replace(item, ref=replace(item.ref, header=msgspec.structs.replace(item.ref.header, width=7))),
        "another digest": replace(item, ref=replace(item.ref, digest=bytes(32))),
        "more rows": replace(item, rows=item.rows + 1),
        "another grid": replace(item, grids=((1, 4, 400),)),
        "no views": replace(item, views=(), grids=()),
        "a view without pixels": replace(item, views=(replace(item.views[0], resized=(0, 0)),)),
        "a view beyond its canvas": replace(item, views=(replace(item.views[0], offset=(5000, 0)),)),
        "a view of gigabytes": replace(
            item, views=(replace(item.views[0], **dict.fromkeys(("resized", "canvas", "tile"), (1 << 20, 1 << 20))),)
        ),
        "frames of a picture": replace(item, frame_indices=(0, 1), frame_times=(0.0, 1.0)),
        "a truncated file": replace(item, ref=replace(item.ref, data=item.ref.data[:40])),
    }
    for name, one in wrong.items():
        answer = encode(encoder, one)
        assert answer.status_code == 400, (name, answer.status_code, answer.content[:200])
    for body in (b"", b"\x04\x00\x00\x00abcd", b"\xff" * 64, os.urandom(4096)):
        assert encoder.http.post("/v1/encoder/encode", content=body).status_code == 400
    assert encode(encoder, item, identity="1-someone-else").status_code == 409
    before = encoder.log
    good = encode(encoder, item)
    head, rows = unpack(RowsHead, good.content)
    check_rows(head, rows.nbytes, item, identity_of(encoder))
    assert encoder.until_idle()
    logged = wait_for(lambda: encoder.log[len(before) :] or None, "a line of the log")
    assert (logged[0]["route"], logged[0]["status"]) == ("/v1/encoder/encode", 200)
    for status in (200, 400, 409):
        row = f'sightline:requests_total{{route="/v1/encoder/encode",status="{status}"}}'
        assert row in encoder.http.get("/metrics").text


def test_equal_pictures_are_encoded_once(encoder: RunningServer) -> None:
    """Asked for by several at once, and again. Red too when another key's request is told what is cached."""
    before = encoder.stats()
    found: list[bytes] = []
    item = picture(923)
    threads = [threading.Thread(target=lambda: found.append(encode(encoder, item).content)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = encoder.stats()
    assert len({unpack(RowsHead, one)[1].tobytes() for one in found}) == 1
    assert after["items_encoded"] - before["items_encoded"] == 1 and after["embedding_hits"] - before["embedding_hits"] == 3
    tenant = replace(item, key=bytes(32))
    encode(encoder, tenant)
    assert encoder.stats()["items_encoded"] - before["items_encoded"] == 2


# ---- Who does not fit


def refusal(*flags: str) -> str:
    """What `serve` says that ends at once."""
    done = subprocess.run(
        [sys.executable, *SERVE, "--port", "0", "--device", "cpu", *flags],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    return done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--encoder-api-key", "other"), NOT_LET_IN),
        ((), NOT_LET_IN),
        (("--encoder-api-key", KEY, "--max-pixels", "65536"), f"{UNFIT} its processor settings differ"),
        (("--encoder-api-key", KEY, "--dtype", "bfloat16"), f"{UNFIT} its dtype is float32, not bfloat16"),
        (("--encoder-api-key", KEY, "--load-format", "dummy"), f"{UNFIT} its tower has other weights"),
        (("--encoder-api-key", KEY, "--no-compact-patches"), f"{UNFIT} its processor settings differ"),
    ],
    ids=["another key", "no key", "processor", "dtype", "weights", "patches"],
)
def test_one_that_does_not_fit_is_refused_at_the_start(encoder: RunningServer, flags: tuple[str, ...], sentence: str) -> None:
    assert f"encoder_url is {encoder.url}, but {sentence}." in refusal("--encoder-url", encoder.url, *flags)


@pytest.mark.slow
def test_a_server_that_is_no_encoder_is_refused(server: RunningServer) -> None:
    assert "that server is none with --encoder-only (status 404)" in refusal("--encoder-url", server.url)


# ---- Deaths


def many(server: RunningServer, seeds: range) -> tuple[list[threading.Thread], dict[int, Any]]:
    """A request for each of so many new pictures, all at once: their answers, or what came instead."""
    found: dict[int, Any] = {}

    def one(seed: int) -> None:
        try:
            found[seed] = ask(server, image_part(seed))
        except openai.APIStatusError as error:
            found[seed] = error

    threads = [threading.Thread(target=one, args=(seed,)) for seed in seeds]
    for thread in threads:
        thread.start()
    return threads, found


@pytest.mark.slow
@pytest.mark.parametrize("fallback", ["local", "refuse"])
def test_an_encoder_that_is_killed(server: RunningServer, tmp_path: Path, fallback: str) -> None:
    """With kill -9, under load, all its processes. With the tower here no request is lost; without it, each that needed a new
    picture gets a 503 that says why. When it is started again it is asked again."""
    with contextlib.ExitStack() as stack:
        (tmp_path / "one").mkdir(), (tmp_path / "two").mkdir(), (tmp_path / "language").mkdir()  # type: ignore[func-returns-value]
        victim = RunningServer(tmp_path / "one", *encoder_flags(), key=KEY).until_ready()
        stack.callback(victim.stop)
        flags = using(victim, "--encoder-fallback", fallback, "--encoder-timeout-s", "20")
        language = stack.enter_context(running(tmp_path / "language", *flags))
        assert ask(language, image_part(940)) == ask(server, image_part(940))
        threads, found = many(language, range(950, 974))
        wait_for(lambda: True if counts(language)["encoder_encoded"] > 2 else None, "the first embeddings")
        for pid in (victim.process.pid, *victim.stats()["engine_pids"]):
            os.kill(pid, signal.SIGKILL)
        for thread in threads:
            thread.join()
        lost = {seed: one for seed, one in found.items() if not isinstance(one, str)}
        for seed in set(found) - set(lost):
            assert found[seed] == ask(server, image_part(seed))
        told = counts(language)
        assert told["encoder_up"] == 0 and told["encoder_away"] > 0
        assert ask(language, image_part(940)) == ask(server, image_part(940)), "what is known needs nobody"
        assert language.chat("Hello").choices
        if fallback == "local":
            assert not lost and told["items_encoded"] > 0
            assert "images are encoded here" in language.errors
        else:
            assert lost and told["items_encoded"] == 0
            for error in lost.values():
                assert error.status_code == 503 and error.code == "encoder_unavailable", error
                assert error.response.headers["Retry-After"] and "The server that encodes" in error.message
        second = stack.enter_context(running(tmp_path / "two", *encoder_flags(victim.port), key=KEY))
        wait_for(lambda: True if counts(language)["encoder_up"] else None, "the encoder to be back")
        assert ask(language, image_part(980)) == ask(server, image_part(980))
        assert second.stats()["items_encoded"] == 1 and "is back" in language.errors
        assert "Traceback" not in language.errors + second.errors
        language.until_idle()


@pytest.mark.slow
def test_an_encoder_whose_engine_is_killed_starts_it_again(
    server: RunningServer, encoder: RunningServer, language: RunningServer
) -> None:
    """Its API process lives, and answers 503 meanwhile: pictures are encoded here."""
    threads, found = many(language, range(1000, 1012))
    encoder.kill_engine()
    for thread in threads:
        thread.join()
    assert all(found[seed] == ask(server, image_part(seed)) for seed in range(1000, 1012)), found
    wait_for(lambda: True if counts(language)["encoder_up"] else None, "the encoder to be back")
    before = counts(language)["encoder_encoded"]
    assert ask(language, image_part(1020)) == ask(server, image_part(1020))
    assert counts(language)["encoder_encoded"] == before + 1


@pytest.mark.slow
def test_a_client_that_leaves_ends_its_encodes(encoder: RunningServer, language: RunningServer) -> None:
    """In both servers. Red when anything is held afterwards."""
    for seed in range(1030, 1038):
        with pytest.raises(openai.APITimeoutError):
            language.openai.with_options(timeout=0.02).chat.completions.create(
                model="sightline-embedded",
                messages=[{"role": "user", "content": [image_part(png(seed, 512, 512)), text_part(QUESTION)]}],
            )
    language.until_idle()
    encoder.until_idle()


@pytest.mark.slow
def test_a_worker_in_a_process_of_its_own_gets_embeddings_too(
    server: RunningServer, encoder: RunningServer, tmp_path: Path
) -> None:
    with running(tmp_path, *using(encoder, "--worker-process")) as other:
        assert ask(other, image_part(1060), image_part(1061)) == ask(server, image_part(1060), image_part(1061))
        assert counts(other)["encoder_encoded"] == 2 and counts(other)["items_encoded"] == 0


@pytest.mark.slow
def test_the_library_asks_as_well(server: RunningServer, encoder: RunningServer) -> None:
    settings = {"encoder_url": encoder.url, "encoder_api_key": KEY, "device": "cpu", "kv_cache_gb": 0.1}
    with LLM(**settings) as llm:
        parts = [{"type": "image", "image": png(1070)}, {"type": "text", "text": QUESTION}]
        answer = llm.chat([{"role": "user", "content": parts}], SamplingParams(max_tokens=8, temperature=0))
        assert answer.text == ask(server, image_part(1070))
        assert llm.engine.counts.encoded == 0 and llm.engine.encoder.remote_counts.encoded == 1
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("encoder")]


@pytest.mark.slow
def test_two_servers_share_an_encoder(encoder: RunningServer, language: RunningServer, tmp_path: Path) -> None:
    """And several engines behind one server."""
    before = encoder.stats()["items_encoded"]
    with running(tmp_path, *using(encoder, "--data-parallel-size", "2")) as other:
        wait_for(lambda: True if counts(other)["encoder_up"] == 2 else None, "both engines")
        for seed in range(1050, 1054):
            assert ask(other, image_part(seed)) == ask(language, image_part(seed))
    assert encoder.stats()["items_encoded"] - before == 4, "one server's pictures are the other's"


def test_settings_that_do_not_go_together() -> None:
    other, alone = EncoderConfig(encoder_url="http://localhost:1"), ServerConfig(encoder_only=True)
    for make, sentence in (
        (lambda: ServerConfig(encoder_only=True, data_parallel_size=2), "data_parallel_size is 2"),
        (lambda: Config(encoder=other, server=alone), "leave encoder_url out"),
        (lambda: Config(engine=EngineConfig(worker_process=True), server=alone), "leave worker_process or"),
        (lambda: Config(engine=EngineConfig(tensor_parallel_size=2), server=alone), "or tensor_parallel_size out"),
        (lambda: Config(encoder=other, engine=EngineConfig(vision_parallel="tensor")), "vision_parallel is 'tensor'"),
        (lambda: EncoderConfig(encoder_connections=0), "encoder_connections is 0"),
        (lambda: EncoderConfig(encoder_timeout_s=0), "encoder_timeout_s is 0"),
        (lambda: EncoderConfig(encoder_api_key="a key"), "encoder_api_key has characters"),
    ):
        with pytest.raises(ConfigError, match=re.escape(sentence)):
            make()


def test_nothing_of_the_key_is_shown(language: RunningServer) -> None:
    assert ADMIN and KEY not in language.http.get("/server_info").text + language.errors
