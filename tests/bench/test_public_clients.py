"""What `vllm bench serve` and `sglang.bench_serving` send and need, against a running server.

The bodies are those of vLLM 0.32.0 and SGLang 0.5.10; the clients themselves were run against the server by hand, see
docs/benchmarks.md.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from server.media import image_part, text_part
from server.running import MODEL, RunningServer, running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running(tmp_path_factory.mktemp("server"), "--served-model-name", MODEL, "/models/Qwen3-VL-8B-Instruct") as made:
        yield made


def events(server: RunningServer, body: dict[str, Any], **headers: str) -> list[dict[str, Any]]:
    """All chunks of a stream that ends with [DONE]."""
    with server.http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


# vLLM takes the first chunk with choices for the first token, and usage from the chunk without.
def test_vllm(server: RunningServer) -> None:
    models = server.http.get("/v1/models").json()["data"]
    assert {"id", "root"} <= set(models[0])  # it takes the name and the tokenizer from there
    body = {
        "model": models[0]["id"],
        "messages": [{"role": "user", "content": [text_part("What is this?"), image_part(1), image_part(2)]}],
        "max_completion_tokens": 4,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "temperature": 0.0,
    }
    *chunks, last = events(server, body, **{"x-request-id": "bench-1"})
    assert all(chunk["choices"] for chunk in chunks)
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 4 and last["usage"]["prompt_tokens"] > 4


# SGLang asks for no usage and fails on a chunk without choices; it calls the model by the path that it was given.
def test_sglang(server: RunningServer) -> None:
    body = {
        "model": "/models/Qwen3-VL-8B-Instruct",
        "messages": [{"role": "user", "content": [image_part(3), text_part("ainty Wenn ErrorMessage＃_jwt$sub곀 实施细则")]}],
        "max_completion_tokens": 1,
        "stream": True,
        "temperature": 0.0,
        "ignore_eos": True,
    }
    chunks = events(server, body)
    assert all(chunk["choices"] and not chunk.get("usage") for chunk in chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert isinstance(server.http.get("/server_info").json()["internal_states"][0], dict)  # it looks into it afterwards


# `vllm bench serve` without --backend openai-chat speaks to /v1/completions, with nulls for what it does not set.
def test_vllm_plain_completions(server: RunningServer) -> None:
    body = {
        "model": MODEL,
        "prompt": "one two three",
        "repetition_penalty": 1.0,
        "max_tokens": 3,
        "logprobs": None,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    with server.http.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200, response.read()
        lines = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]
    assert all("text" in chunk["choices"][0] for chunk in lines[:-1])
    assert lines[-1]["choices"] == [] and lines[-1]["usage"]["completion_tokens"] == 3
