"""Embeddings over HTTP, behind a flag; on a server that keeps no embeddings for later."""

import base64
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from server.media import image_part, text_part
from server.running import RunningServer, running

FIRST, SECOND = "first-key", "second-key"


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    flags = ("--enable-mm-embeds", "--embedding-cache-gb", "0", "--api-key", FIRST, SECOND, "--kv-cache-gb", "0.2")
    with running(tmp_path_factory.mktemp("embeds"), *flags, key=FIRST) as made:
        yield made


def part(data: bytes, shape: tuple[int, int], dtype: str = "float32", width: int = 448, height: int = 448) -> dict[str, Any]:
    given = {"data": base64.b64encode(data).decode(), "dtype": dtype, "shape": shape, "width": width, "height": height}
    return {"type": "image_embeds", "image_embeds": given}


def ask(server: RunningServer, *parts: dict[str, Any], key: str = FIRST) -> Any:
    body = {"messages": [{"role": "user", "content": [*parts, text_part("What is this?")]}], "max_tokens": 4, "temperature": 0}
    body |= {"return_timings": True}
    return server.http.post("/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {key}"})


def shape_wanted(server: RunningServer) -> tuple[int, int]:
    """As the refusal of a wrong one says."""
    refused = ask(server, part(bytes(4), (1, 1)))
    assert refused.status_code == 400
    found = re.search(r"have the shape \[1, 1\]; an image of 448x448 pixels has \[(\d+), (\d+)\]", refused.text)
    assert found, refused.text
    return int(found[1]), int(found[2])


def test_embeddings_are_answered_and_are_their_senders_own(open_server: RunningServer) -> None:
    """Red if they are decoded or encoded, if equal ones of one key are not found, or those of another key are."""
    shape = shape_wanted(open_server)
    rows = np.random.default_rng(0).normal(size=shape)
    told = []
    for key, dtype, data in (
        (FIRST, "float32", rows.astype("<f4").tobytes()),
        (FIRST, "float32", rows.astype("<f4").tobytes()),
        (SECOND, "float32", rows.astype("<f4").tobytes()),
        (FIRST, "bfloat16", (rows.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()),
    ):
        response = ask(open_server, part(data, shape, dtype), key=key)
        assert response.status_code == 200, response.text
        usage = response.json()["usage"]
        assert response.json()["metadata"]["encoded_items"] == 0
        assert usage["prompt_tokens_details"]["image_tokens"] == shape[0]
        told.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert told[0] == told[2] == 0 and told[1] == usage["prompt_tokens"] - 1 and told[3] < told[1]


def test_what_is_wrong_with_them_is_one_sentence(open_server: RunningServer) -> None:
    """Red if anything else than numbers of the said shape gets through."""
    shape = shape_wanted(open_server)
    size = shape[0] * shape[1]
    for wrong, said in (
        (part(bytes(4 * size - 4), shape), "numbers of float32 are"),
        (part(b"\x80\x7f" * size, shape, "bfloat16"), "not finite"),
        (part(bytes(8 * size), shape, "float64"), "float64"),
        (part(bytes(4 * size), (shape[0], 0)), "shape"),
        ({"type": "image_embeds", "image_embeds": {**part(b"", (1, 1))["image_embeds"], "data": "gASV"}}, "bytes"),
        ({"type": "image_embeds", "image_embeds": {**part(b"", (1, 1))["image_embeds"], "data": "?"}}, "base64"),
    ):
        response = ask(open_server, wrong)
        assert response.status_code == 400 and said in response.json()["error"]["message"], response.text
    assert ask(open_server, text_part("Still there.")).status_code == 200


def test_without_a_cache_an_image_is_encoded_for_each_request(open_server: RunningServer) -> None:
    """Red if --embedding-cache-gb 0 keeps rows when nobody needs them: another text behind the same picture's place."""
    encoded = [ask(open_server, text_part(text), image_part(91)).json()["metadata"]["encoded_items"] for text in "abc"]
    assert encoded == [1, 1, 1]
    assert open_server.until_idle()["embedding_bytes_used"] == 0


def test_the_flag_is_off_by_default(server: RunningServer) -> None:
    """Red if a server takes embeddings that was not told to."""
    response = server.http.post(
        "/v1/chat/completions", json={"messages": [{"role": "user", "content": [part(bytes(4), (1, 1))]}], "max_tokens": 1}
    )
    assert response.status_code == 400 and "enable_mm_embeds" in response.text
