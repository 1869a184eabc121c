"""What a server makes of another one that encodes for it, well or badly: engine/remote/client.py against a fake of that one."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.fake_encoder import IDENTITY, FakeEncoder, asking, item, rows_of, until
from sightline.config import EncoderConfig
from sightline.encoder.decoding.pixels import PixelState
from sightline.engine.remote import client
from sightline.engine.remote.client import RemoteEncoder
from sightline.engine.remote.wire import RowsHead, WireError, pack, unpack
from sightline.errors import ConfigError, EncoderAwayError, MediaError


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEncoder]:
    monkeypatch.setattr(client, "RETRY_S", 0.05)
    monkeypatch.setattr(client, "_WATCH_S", 0.02)
    made = FakeEncoder()
    yield made
    made.close()


def settled(remote: RemoteEncoder, *items: Any) -> None:
    until(lambda: all(remote.state(one) is not PixelState.PENDING for one in items), "answers")


def test_rows_come_as_they_were_sent_and_the_key_goes_along(fake: FakeEncoder) -> None:
    items = [item(seed) for seed in range(5)]
    with asking(fake, encoder_api_key="secret") as remote:
        assert remote.up and remote.state(items[0]) is PixelState.PENDING
        remote.want(items)
        settled(remote, *items)
        for number, one in enumerate(items):
            assert remote.decoder_of(one) == "cpu"
            assert remote.take(one).data == bytes([number]) * (4 * 6 * 4)
        assert remote.counts.encoded == 5 and remote.counts.bytes == 5 * 96 and not remote.failed()
    assert fake.keys == ["Bearer secret"]
    assert sorted(fake.asked) == [one.ref.digest for one in items], "an item was asked for twice"


def truncated(asked: Any) -> Any:
    status, body = rows_of(asked)

    def say(handler: Any) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body[:-10])

    return say


def endless(handler: Any) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(1 << 50))
    handler.end_headers()


WRONG = {
    "shorter": lambda asked: (200, rows_of(asked)[1][:-4]),
    "longer": lambda asked: (200, rows_of(asked)[1] + b"1234"),
    "another dtype": lambda asked: rows_of(asked, dtype="float16"),
    "another shape": lambda asked: rows_of(asked, shape=(2, 12)),
    "a negative shape": lambda asked: rows_of(asked, shape=(-4, -6)),
    "another file": lambda asked: rows_of(asked, digest=b"?" * 32),
    "no message": lambda asked: (200, b""),
    "a head that is too long": lambda asked: (200, b"\xff\xff\xff\xff" + b"x" * 90),
    "a head of another type": lambda asked: (200, pack({"digest": 1}) + b"x" * 96),
    "more than fits": lambda asked: endless,
    "no HTTP": lambda asked: lambda handler: handler.wfile.write(b"hello\r\n\r\n"),
    "an end in the middle": truncated,
    "status 500": lambda asked: (500, b"{}"),
    "nothing": lambda asked: lambda handler: None,
}


@pytest.mark.parametrize("how", WRONG)
def test_a_wrong_answer_costs_its_item_alone(fake: FakeEncoder, how: str) -> None:
    """Red when it is taken, when others fail with it, or when the one that asks cannot go on."""
    bad, good = item(1), item(2)
    fake.answer = lambda asked, data: WRONG[how](asked) if asked.ref.digest == bad.ref.digest else rows_of(asked)
    with asking(fake) as remote:
        remote.want([bad])
        settled(remote, bad)
        ((found, error),) = remote.failed()
        assert found is bad and isinstance(error, EncoderAwayError), error
        with pytest.raises(EncoderAwayError):
            remote.take(bad)
        until(lambda: remote.up, "the other to be met again")
        remote.want([good])
        settled(remote, good)
        assert len(remote.take(good).data) == 96
        assert remote.counts.encoded == 1 and remote.counts.away == 1


def test_not_a_number_is_what_the_other_tower_made(fake: FakeEncoder) -> None:
    """Rows are not looked at: a tower here could make the same of a picture, and its request alone sees them."""
    fake.answer = lambda asked, data: (200, rows_of(asked)[1][:-96] + b"\xff" * 96)
    with asking(fake) as remote:
        remote.want([item(3)])
        settled(remote, item(3))
        assert remote.take(item(3)).data == b"\xff" * 96


def test_a_file_that_cannot_be_encoded_is_the_users_fault(fake: FakeEncoder) -> None:
    fake.answer = lambda asked, data: (400, b'{"error": {"message": "Image picture 1 is broken\\u0007."}}')
    with asking(fake) as remote:
        remote.want([item(1)])
        settled(remote, item(1))
        with pytest.raises(MediaError, match=r"^Image picture 1 is broken\.$") as raised:
            remote.take(item(1))
        assert not isinstance(raised.value, EncoderAwayError) and remote.up


def test_one_that_is_busy_is_asked_again(fake: FakeEncoder) -> None:
    answers = iter([(429, b""), (429, b"")])
    fake.answer = lambda asked, data: next(answers, rows_of(asked))
    with asking(fake) as remote:
        remote.want([item(1)])
        settled(remote, item(1))
        assert remote.take(item(1)).data and len(fake.asked) == 3


def test_what_is_not_wanted_any_more_is_ended(fake: FakeEncoder) -> None:
    """Red when the other server goes on with it, or its answer is counted."""
    fake.answer = fake.hold
    with asking(fake) as remote:
        remote.want([item(1)])
        assert fake.held.wait(20)
        remote.want([])
        until(lambda: fake.lost == [item(1).ref.digest], "the connection to be closed")
        assert remote.state(item(1)) is PixelState.PENDING and remote.up
        fake.answer = lambda asked, data: rows_of(asked)
        remote.want([item(1)])
        settled(remote, item(1))
        assert remote.take(item(1)).data and remote.counts.away == 0


def test_one_that_never_answers_is_given_up(fake: FakeEncoder) -> None:
    fake.answer = fake.hold
    with asking(fake, encoder_timeout_s=0.2) as remote:
        remote.want([item(1)])
        settled(remote, item(1))
        ((_, error),) = remote.failed()
        assert "did not answer within 0.2 s" in str(error)


def test_memory_for_rows_is_bounded(fake: FakeEncoder) -> None:
    """Room for two: the third is asked for when one is taken; an urgent one takes the place of one that is ready."""
    first, second, third, urgent = (item(seed) for seed in range(4))
    with asking(fake, memory_bytes=200) as remote:
        remote.want([first, second, third])
        settled(remote, first, second)
        assert remote.state(third) is PixelState.PENDING and len(fake.asked) == 2
        remote.take(first)
        remote.want([second, third])
        settled(remote, third)
        remote.want([urgent, second, third])
        settled(remote, urgent)
        assert remote.state(third) is PixelState.PENDING
        remote.want([item(5, rows=100)])  # larger than all of it: alone
        settled(remote, item(5, rows=100))


def test_the_other_goes_and_comes_back(fake: FakeEncoder) -> None:
    with asking(fake) as remote:
        assert remote.has_changed() and not remote.has_changed()
        fake.identity = 503
        fake.answer = lambda asked, data: (503, b"{}")
        remote.want([item(1)])
        settled(remote, item(1))
        assert not remote.up and remote.has_changed() and "status 503" in remote.away_because
        remote.want([item(2)])
        assert remote.state(item(2)) is PixelState.FAILED, "while it is away nobody waits for it"
        fake.identity, fake.answer = IDENTITY, lambda asked, data: rows_of(asked)
        until(lambda: remote.up, "the other to be back")
        assert remote.has_changed()
        remote.want([item(3)])
        settled(remote, item(3))
        assert remote.take(item(3)).data


OTHERS = {
    "its tower has other weights": {"tower": "u" * 64},
    "its processor settings differ": {"processor": "q" * 64},
    "its dtype is bfloat16, not float32": {"dtype": "bfloat16"},
    "its embeddings have 7 numbers, not 6": {"width": 7},
    "it speaks protocol 9, not 1": {"protocol": 9},
}


@pytest.mark.parametrize("difference", OTHERS)
def test_another_model_is_refused_by_what_differs(fake: FakeEncoder, difference: str) -> None:
    from msgspec.structs import replace

    fake.identity = replace(IDENTITY, **OTHERS[difference])
    with pytest.raises(ConfigError, match=difference), asking(fake):
        pass
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("encoder")]
    with pytest.raises(ConfigError, match=r"does not accept encoder_api_key \(status 401\)"):
        fake.identity = 401
        with asking(fake):
            pass


def test_one_that_becomes_another_model_is_not_asked(fake: FakeEncoder) -> None:
    from msgspec.structs import replace

    with asking(fake) as remote:
        fake.identity = replace(IDENTITY, tower="u" * 64)
        fake.answer = lambda asked, data: (409, b'{"error": {"message": "This is another tower."}}')
        remote.want([item(1)])
        settled(remote, item(1))
        until(lambda: "other weights" in remote.away_because, "a handshake")
        assert not remote.up


def test_one_that_is_away_at_the_start_may_come(fake: FakeEncoder) -> None:
    fake.identity = 503
    with asking(fake) as remote:
        assert not remote.up
        fake.identity = IDENTITY
        until(lambda: remote.up, "the other")


@pytest.mark.parametrize("url", ["10.0.0.7:8000", "ftp://host", "http://user@host", "http://host/?a=b", "http:// host"])
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError, match="encoder_url is"):
        EncoderConfig(encoder_url=url)


@given(st.binary(max_size=200))
def test_no_bytes_are_taken_for_a_message_that_they_are_not(data: bytes) -> None:
    try:
        head, payload = unpack(RowsHead, data)
    except WireError:
        return
    assert pack(head) + bytes(payload) == data
