"""The answerer that asks a server, against a real socket: what is sent, what is tried again, what ends the run."""

import io
import socket
from typing import Any

import numpy as np
import pybase64
import pytest
from PIL import Image

from evals.published_data import png
from evals.stub_server import StubReply, completion, error, stream, stub
from sightline.errors import ConfigError, MediaError, PromptError
from sightline.evals.answerer import AnswererGone
from sightline.evals.conversation import user_message
from sightline.evals.server import ServerAnswerer

QUESTION = user_message("What is it?", {"": png(1)})


def decoded(part: dict[str, Any]) -> tuple[str, bytes]:
    head, encoded = part[part["type"]]["url"].split(";base64,")
    return head, pybase64.b64decode(encoded)


def test_what_is_sent_and_read() -> None:
    with stub(lambda body: completion("a sign", "length")) as server:
        answerer = ServerAnswerer(server.url, api_key="secret")
        answer = answerer.ask(QUESTION, {"temperature": 0, "max_tokens": 5, "top_k": 3, "seed": None})
        answerer.close()
    assert (answer.text, answer.finish_reason, answer.prompt_tokens, answer.completion_tokens) == ("a sign", "length", 7, 2)
    (body,) = server.bodies
    message = body.pop("messages")
    assert body == {"model": "stub", "temperature": 0, "max_tokens": 5, "top_k": 3}
    assert message[0]["content"][1] == {"type": "text", "text": "What is it?"}
    assert decoded(message[0]["content"][0]) == ("data:image/png", png(1))
    assert server.keys == ["Bearer secret"]
    assert answerer.about == {"model": "stub", "server": server.url}


def test_other_media() -> None:
    """A drawn picture keeps every pixel; a clip and the answers between turns go along."""
    drawn = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    conversation = [
        {"role": "user", "content": [{"type": "image", "image": drawn}, {"type": "video", "video": b"clip"}]},
        {"role": "assistant", "content": "seen"},
    ]
    with stub(lambda body: completion("yes")) as server:
        ServerAnswerer(server.url, "named").ask(conversation, {})
    first, second = server.bodies[0]["messages"]
    head, encoded = decoded(first["content"][0])
    assert head == "data:image/png" and np.array_equal(np.asarray(Image.open(io.BytesIO(encoded))), np.asarray(drawn))
    assert first["content"][1]["type"] == "video_url" and decoded(first["content"][1]) == ("data:video/x-matroska", b"clip")
    assert second == {"role": "assistant", "content": "seen"}
    with pytest.raises(MediaError, match="An image of 3 bytes cannot be read"), stub(lambda body: completion("")) as server:
        ServerAnswerer(server.url, "named").ask(user_message("?", {"": b"bad"}), {})


def test_an_answer_of_reasoning_alone_is_empty() -> None:
    with stub(lambda body: completion(None, "length")) as server:
        assert ServerAnswerer(server.url).ask(QUESTION, {}).text == ""


# Red if a piece of the text, the reason or the usage of a stream is lost, or if usage is not asked for.
def test_an_answer_in_pieces() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}
    pieces = [{"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}]
    pieces += [{"text": "a "}, {"text": "sign"}, {"reason": "length"}, usage]
    with stub(lambda body: stream(*pieces)) as server:
        answer = ServerAnswerer(server.url, stream=True).ask(QUESTION, {"max_tokens": 5})
    assert (answer.text, answer.finish_reason, answer.prompt_tokens, answer.completion_tokens) == ("a sign", "length", 7, 2)
    assert server.bodies[0]["stream"] is True and server.bodies[0]["stream_options"] == {"include_usage": True}


def test_errors_in_a_stream() -> None:
    """One that may pass is tried again, one that does not ends this question; a stream without its end is no answer."""
    broken = {"error": {"message": "The engine ended.", "code": 503}}
    replies = [stream({"text": "a"}, broken), stream({"text": "b"})]
    with stub(lambda body: replies.pop(0)) as server:
        assert ServerAnswerer(server.url, stream=True, first_pause_s=0.01).ask(QUESTION, {}).text == "b"
    wrong = {"error": {"message": "too long", "code": 400}}
    with stub(lambda body: stream(wrong)) as server, pytest.raises(PromptError, match="answered 400: too long"):
        ServerAnswerer(server.url, stream=True, first_pause_s=9).ask(QUESTION, {})
    cut = stream({"text": "a"})[1].replace(b"data: [DONE]", b"")
    with stub(lambda body: (200, cut)) as server, pytest.raises(AnswererGone, match="no stream of a chat completion"):
        ServerAnswerer(server.url, stream=True).ask(QUESTION, {})


def test_a_bare_host_gets_the_usual_path() -> None:
    with stub(lambda body: completion("yes")) as server:
        answerer = ServerAnswerer(server.url.removesuffix("/v1"))
    assert answerer.base_url == server.url and answerer.model == "stub"


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_may_pass_is_tried_again(status: int) -> None:
    replies: list[StubReply] = [error(status, "busy"), error(status, "busy"), completion("at last")]
    with stub(lambda body: replies.pop(0)) as server:
        assert ServerAnswerer(server.url, first_pause_s=0.01).ask(QUESTION, {}).text == "at last"
    assert len(server.bodies) == 3


def test_what_does_not_pass_ends_the_run() -> None:
    gone = pytest.raises(AnswererGone, match=r"answered 503: The engine is gone\.$")
    with stub(lambda body: error(503, "The engine is gone.")) as server, gone:
        ServerAnswerer(server.url, first_pause_s=0.001).ask(QUESTION, {})
    assert len(server.bodies) == 5


@pytest.mark.parametrize(("status", "kind"), [(401, AnswererGone), (404, AnswererGone), (400, PromptError), (413, PromptError)])
def test_a_refusal_is_not_tried_again(status: int, kind: type[Exception]) -> None:
    """Of this question, or of all."""
    with stub(lambda body: error(status, "no")) as server, pytest.raises(kind, match=f"answered {status}: no") as refused:
        ServerAnswerer(server.url, first_pause_s=9).ask(QUESTION, {})
    assert type(refused.value) is kind and len(server.bodies) == 1


@pytest.mark.parametrize("reply", [(200, b"<html>"), (200, {"object": "nothing"}), (200, {"choices": []}), (200, [1])])
def test_what_is_no_completion_is_said(reply: StubReply) -> None:
    with stub(lambda body: reply) as server, pytest.raises(AnswererGone, match=r"not JSON|no chat completion"):
        ServerAnswerer(server.url).ask(QUESTION, {})


def test_the_model_must_be_clear() -> None:
    with stub(lambda body: completion(""), models=("one", "two")) as server:
        with pytest.raises(ConfigError, match=r"serves 2 models \(one, two\); name one with --served-model"):
            ServerAnswerer(server.url)
        assert ServerAnswerer(server.url, "two").model == "two"


def test_nobody_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(AnswererGone, match=f"http://127.0.0.1:{port}/v1 cannot be reached"):
        ServerAnswerer(f"http://127.0.0.1:{port}", first_pause_s=0.001)
    with pytest.raises(ConfigError, match="must be an http"):
        ServerAnswerer("localhost:8000")
