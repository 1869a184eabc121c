"""Several API keys: none learns from counts what another has asked. A salt divides what one key asks, in both caches."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest

from prompt.builders import image_item
from server.media import image_part, text_part
from server.running import ADMIN, RunningServer, running
from sightline.engine.file_cache import FileCacheIndex
from sightline.engine.messages import add_frames
from sightline.sampling_params import resolve_sampling
from sightline.submission import Submission, of_tenant, tenant_of
from sightline.types import Request, SamplingParams

FIRST, SECOND = "first-key", "second-key"
IMAGE_BEGINS = 8  # tokens of a chat's first words, which come before its image


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running(tmp_path_factory.mktemp("keyed"), "--api-key", FIRST, SECOND, "--kv-cache-gb", "0.2", key=FIRST) as made:
        yield made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    flags = ("--api-key", FIRST, SECOND, "--share-caches-between-keys", "--kv-cache-gb", "0.2")
    with running(tmp_path_factory.mktemp("shared"), *flags, key=FIRST) as made:
        yield made


def ask(server: RunningServer, key: str, image: int, text: str = "", salt: str | None = None) -> tuple[int, int]:
    """(cached tokens, encoded items) of a question about an image, which begins with the image unless there is a text first."""
    first = [text_part(text)] if text else []
    body: dict[str, Any] = {"messages": [{"role": "user", "content": [*first, image_part(image), text_part("What is this?")]}]}
    body |= {"max_tokens": 1, "return_timings": True, "cache_salt": salt}
    response = server.http.post("/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {key}"})
    assert response.status_code == 200, response.text
    said = response.json()
    return said["usage"]["prompt_tokens_details"]["cached_tokens"], said["metadata"]["encoded_items"]


def test_a_key_does_not_see_what_another_has_asked(keyed: RunningServer) -> None:
    """Red when the key is not part of what prefixes and embeddings are found by."""
    cached, encoded = ask(keyed, FIRST, 8001)
    assert (cached, encoded) == (0, 1)
    assert ask(keyed, SECOND, 8001) == (0, 1), "the prefix of another key, or its image"
    again, encoded = ask(keyed, FIRST, 8001)
    assert again > 0 and encoded == 0, "one's own is found"
    assert ask(keyed, FIRST, 8001, "In another prompt") == (0, 0), "the image alone, behind another text"
    assert ask(keyed, SECOND, 8001, "In another prompt again")[1] == 0, "it has asked for it itself by now"
    assert ask(keyed, FIRST, 8002, "First of all") == (0, 1)
    assert ask(keyed, SECOND, 8002, "First of all, by another") == (0, 1), "the embeddings of another key"


def test_equal_salts_of_different_keys_are_different(keyed: RunningServer) -> None:
    assert ask(keyed, FIRST, 8011, salt="tenant") == (0, 1)
    assert ask(keyed, SECOND, 8011, salt="tenant") == (0, 1)
    cached, encoded = ask(keyed, FIRST, 8011, salt="tenant")
    assert cached > 0 and encoded == 0


@pytest.mark.parametrize("name", ["server", "shared"])
def test_a_salt_covers_both_caches(name: str, request: pytest.FixtureRequest) -> None:
    """Red when an image that was sent with another salt need not be encoded."""
    server: RunningServer = request.getfixturevalue(name)
    key = server.key
    assert ask(server, key, 8021, salt="one") == (0, 1)
    assert ask(server, key, 8021, salt="two") == (0, 1)
    assert ask(server, key, 8021, "Another prompt", salt="three") == (0, 1)
    cached, encoded = ask(server, key, 8021)
    assert cached < IMAGE_BEGINS and encoded == 1, "without a salt: at most the words with which all chats begin"
    assert ask(server, key, 8021, salt="one")[1] == 0


def test_keys_share_caches_if_they_are_told_to(shared: RunningServer) -> None:
    assert ask(shared, FIRST, 8031) == (0, 1)
    cached, encoded = ask(shared, SECOND, 8031)
    assert cached > 0 and encoded == 0
    assert ask(shared, SECOND, 8031, salt="own") == (0, 1)
    cached, encoded = ask(shared, FIRST, 8031, salt="own")
    assert cached > 0 and encoded == 0


def test_prompts_of_texts_are_kept_apart_as_well(keyed: RunningServer) -> None:
    """/v1/completions. Red when only chats have tenants."""
    prompt = "A long beginning that fills more than a page of tokens, and then some more of it. " * 3

    def cached(key: str) -> int:
        headers = {"Authorization": f"Bearer {key}"}
        response: httpx.Response = keyed.http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1}, headers=headers)
        return int(response.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert cached(FIRST) == 0
    assert cached(SECOND) == 0
    assert cached(FIRST) > 0


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions", "/v1/models"])
def test_keys_come_in_either_header(keyed: RunningServer, path: str) -> None:
    """Red when one of them is not read, or a wrong one in the other hides it, or none is asked for."""
    body = {"max_tokens": 1, "messages": [{"role": "user", "content": "Hello"}]}

    def status(headers: dict[str, str]) -> int:
        with httpx.Client(base_url=keyed.url) as client:
            response = (
                client.get(path, headers=headers) if path.endswith("models") else client.post(path, json=body, headers=headers)
            )
        assert response.status_code == 200 or ("x-api-key" in response.text and "authentication_error" in response.text)
        return response.status_code

    good, bad = FIRST, "third"
    assert status({"x-api-key": good}) == status({"Authorization": f"Bearer {good}"}) == status({"x-api-key": ADMIN}) == 200
    assert status({"x-api-key": good, "Authorization": f"Bearer {bad}"}) == 200
    assert status({"x-api-key": bad, "Authorization": f"Bearer {good}"}) == 200
    assert status({"x-api-key": bad}) == status({}) == status({"x-api-key": ""}) == 401


def test_a_key_is_the_same_tenant_in_either_header(keyed: RunningServer) -> None:
    """And another key is another one, at each endpoint. Red when what one has asked is found by the other."""
    content = [
        {"type": "text", "text": "A long beginning that fills more than a page of tokens, and then some more of it. " * 3}
    ]

    def cached(headers: dict[str, str]) -> int:
        body = {"max_tokens": 1, "messages": [{"role": "user", "content": content}]}
        with httpx.Client(base_url=keyed.url) as client:
            return int(client.post("/v1/messages", json=body, headers=headers).json()["usage"]["cache_read_input_tokens"])

    def cached_by_responses(key: str) -> int:
        body = {"max_output_tokens": 1, "input": content[0]["text"]}
        with httpx.Client(base_url=keyed.url, headers={"x-api-key": key}) as client:
            return int(client.post("/v1/responses", json=body).json()["usage"]["input_tokens_details"]["cached_tokens"])

    assert cached({"x-api-key": FIRST}) == 0
    assert cached({"Authorization": f"Bearer {FIRST}"}) > 0
    assert cached({"x-api-key": SECOND}) == 0
    assert cached_by_responses(FIRST) > 0


def test_names_of_tenants() -> None:
    """Red when two tenants can have the same name by a choice of words, or when a salt that is no Unicode fails."""
    names = [tenant_of(*pair) for pair in (("a", "b"), ("ab", ""), ("", "ab"), ("1 a", ""), ("", "1 a"), ("a", "bc"))]
    assert len(set(names)) == len(names) and tenant_of("", "") == "" and tenant_of("", "\ud800")


def test_items_and_files_belong_to_a_tenant() -> None:
    """Red when the engine finds the embeddings, the pixels or the bytes of an image that another tenant sent."""
    item = replace(image_item(2, 3), ref=replace(image_item(2, 3).ref, data=b"x" * 100))
    ids = np.arange(7, dtype=np.int32)
    request = Request(ids, np.tile(ids, (3, 1)), 0, (item,), ())
    one, two = (of_tenant(request, tenant) for tenant in ("one", "two"))
    assert len({request.items[0].key, one.items[0].key, two.items[0].key}) == 3
    assert of_tenant(request, "") is request and all(len(own.items[0].key) == 32 for own in (one, two))
    assert of_tenant(request, "one").items == one.items and one.items[0].ref == item.ref
    file_index, sampling = FileCacheIndex(10_000), resolve_sampling(SamplingParams(), {})
    sent = [
        len(add_frames(file_index, 1, Submission(own, sampling, cache_salt=salt)))
        for own, salt in ((one, "one"), (two, "two"), (one, "one"))
    ]
    assert sent[0] == sent[1] == sent[2] + 1, "whether a file must be sent tells nobody what others have sent"
