"""Over HTTP: a picture that the engine still has as a file is decoded again from that file, and from no other."""

import io
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest
from PIL import Image

from server.media import image_part, text_part
from server.running import ADMIN, RunningServer, running


def noisy(seed: int) -> bytes:
    """Some 60 kB, so that a few of them fill what is kept."""
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (128, 160, 3), dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """It forgets rows and prefixes at once, so every question needs its picture's bytes."""
    flags = "--kept-media-mb 1 --no-enable-prefix-caching --kv-cache-gb 0.05"
    more = "--embedding-cache-gb 0.0002 --embedding-host-cache-gb 0"
    with running(tmp_path_factory.mktemp("forgetful"), *flags.split(), *more.split()) as made:
        yield made


class Seen:
    """What a model says of a picture, and how sure it is: of another picture it is otherwise. How a prompt was cut into chunks
    while its pixels were awaited changes the last digits."""

    def __init__(self, logprobs: list[dict[str, Any]]) -> None:
        self.tokens = [one["token"] for one in logprobs]
        self.logprobs = [one["logprob"] for one in logprobs]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Seen) and self.tokens == other.tokens and np.allclose(self.logprobs, other.logprobs, atol=1e-5)

    __hash__ = None  # type: ignore[assignment]


def answer(server: RunningServer, picture: bytes, **fields: Any) -> Seen:
    """`fields` of the image's part in the request."""
    content = [{**image_part(picture), **fields}, text_part("What is it?")]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 4, "temperature": 0, "logprobs": True}
    response = server.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    return Seen(response.json()["choices"][0]["logprobs"]["content"])


def test_pictures_are_their_own_however_often_they_are_asked_about(forgetful: RunningServer) -> None:
    """Red when a file is taken for another, or counted on after it was dropped: 24 files, of which some 16 are kept."""
    pictures = [noisy(seed) for seed in range(24)]
    first = [answer(forgetful, picture) for picture in pictures]
    assert sum(one == other for one in first for other in first) < 24 + 2 * 8, "few pictures look the same"
    random = Random(0)
    before = forgetful.stats()["items_decoded"]
    for _ in range(60):
        number = random.choice((*range(24), *range(6), *range(6)))
        assert answer(forgetful, pictures[number]) == first[number]
    assert forgetful.stats()["items_decoded"] > before + 30
    flushed = forgetful.http.post("/flush_cache", headers={"Authorization": f"Bearer {ADMIN}"})
    assert flushed.status_code == 200
    assert [answer(forgetful, picture) for picture in pictures[:4]] == first[:4]


def test_a_picture_by_its_uuid_alone_and_then_whole_again(forgetful: RunningServer) -> None:
    """Red when the name without bytes takes the place of the file that is kept."""
    picture = noisy(100)
    first = answer(forgetful, picture, uuid="one")
    answer(forgetful, noisy(101))  # its rows are gone
    assert answer(forgetful, picture, uuid="one", image_url=None) == first, "the engine still has the file"
    answer(forgetful, noisy(101))
    assert answer(forgetful, picture) == first
