"""Answers from an OpenAI-compatible server: Sightline's own, another engine's or a hosted one."""

import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from sightline.errors import ConfigError, PromptError
from sightline.evals.answerer import AnswererGone, ModelAnswer
from sightline.evals.conversation import Conversation, as_openai

_TRIES = 5
_FIRST_PAUSE_S = 0.5  # doubles with each try
_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504})  # a server may say otherwise a moment later
_FOR_ALL = frozenset({401, 403, 404, 405})  # what it says to one request it will say to all


class ServerAnswerer:
    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        api_key: str | None = None,
        timeout_s: float = 600.0,
        first_pause_s: float = _FIRST_PAUSE_S,
        stream: bool = False,
    ) -> None:
        """Without `model`, the one that the server names if it names only one."""
        self.base_url = _api_root(base_url)
        self._stream = stream
        self._pause = first_pause_s
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.Client(
            base_url=self.base_url,
            headers=headers,
            timeout=httpx.Timeout(timeout_s, connect=10.0),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        )
        try:
            self.model = model or self._only_model()
        except BaseException:
            self._client.close()
            raise

    @property
    def about(self) -> Mapping[str, Any]:
        return {"model": self.model, "server": self.base_url}

    def ask(self, conversation: Conversation, sampling: Mapping[str, Any]) -> ModelAnswer:
        asked = {"stream": True, "stream_options": {"include_usage": True}} if self._stream else {}
        body = {"model": self.model, "messages": as_openai(conversation), **asked, **sampling}
        reply = self._send("POST", "/chat/completions", {name: value for name, value in body.items() if value is not None})
        try:
            choice = reply["choices"][0]
            usage = reply.get("usage") or {}
            return ModelAnswer(
                text=choice["message"].get("content") or "",
                finish_reason=str(choice.get("finish_reason")),
                prompt_tokens=int(usage.get("prompt_tokens") or 0),
                completion_tokens=int(usage.get("completion_tokens") or 0),
            )
        except (KeyError, IndexError, TypeError, AttributeError, ValueError):
            raise AnswererGone(f"{self.base_url} answered with what is no chat completion: {_short(reply)}.") from None

    def close(self) -> None:
        self._client.close()

    def _only_model(self) -> str:
        listed = self._send("GET", "/models")
        try:
            names = [str(entry["id"]) for entry in listed["data"]]
        except (KeyError, TypeError):
            raise AnswererGone(f"{self.base_url}/models is no list of models: {_short(listed)}.") from None
        if len(names) != 1:
            shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
            raise ConfigError(f"{self.base_url} serves {len(names)} models ({shown}); name one with --served-model.")
        return names[0]

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The JSON of a reply. What may pass is tried again."""
        said = ""
        for number in range(_TRIES):
            if number:
                time.sleep(self._pause * 2 ** (number - 1))
            try:
                response = self._client.request(method, path.lstrip("/"), json=body)
            except httpx.TimeoutException:
                said = "did not answer in time"
                continue
            except httpx.HTTPError as error:
                said = f"cannot be reached: {error or type(error).__name__}"
                continue
            status, content = response.status_code, _content_of(response, self.base_url)
            if response.is_success:
                if not (isinstance(content, Mapping) and content.get("error")):
                    return content
                status = _code_of(content["error"])  # it came in the midst of a stream
            said = f"answered {status}: {_message_of(content)}"
            if status in _FOR_ALL:
                break
            if status not in _PASSING:
                raise PromptError(f"The server {said}.")
        raise AnswererGone(f"{self.base_url} {said.rstrip('.')}.")


def _api_root(url: str) -> str:
    """The address that paths such as /chat/completions are added to; a bare host gets the usual /v1."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigError(f"--base-url is {url!r}, but must be an http(s) address such as http://127.0.0.1:8000/v1.")
    return url.rstrip("/") if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}/v1"


def _content_of(response: httpx.Response, base_url: str) -> Any:
    """The JSON of a reply, or the chat completion that the chunks of a stream make."""
    if response.is_success and response.headers.get("content-type", "").startswith("text/event-stream"):
        return _completion_of(response.text, base_url)
    try:
        return response.json()
    except ValueError:
        if not response.is_success:
            return response.text
        raise AnswererGone(f"{base_url} answered with something that is not JSON: {_short(response.text)}.") from None


def _completion_of(stream: str, base_url: str) -> dict[str, Any]:
    """What a server would have answered without a stream; or the error in it."""
    text, reason, usage = "", None, None
    try:
        for line in stream.splitlines():
            data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
            if not data:
                continue
            if data == "[DONE]":
                choice = {"message": {"content": text}, "finish_reason": reason}
                return {"choices": [choice], "usage": usage}
            chunk = json.loads(data)
            if "error" in chunk:
                return {"error": chunk["error"]}
            for choice in chunk["choices"]:
                text += choice["delta"].get("content") or ""
                reason = choice.get("finish_reason") or reason
            usage = chunk.get("usage") or usage
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise AnswererGone(f"{base_url} answered with what is no stream of a chat completion: {_short(stream)}.")


def _code_of(error: Any) -> int:
    """The status of an error that came in a stream; one that names none may pass."""
    code = error.get("code") if isinstance(error, Mapping) else None
    return code if isinstance(code, int) else 500


def _message_of(content: Any) -> str:
    """What an error says: OpenAI's form, or whatever text came."""
    error = content.get("error", content) if isinstance(content, Mapping) else content
    return _short(error.get("message") if isinstance(error, Mapping) else error).rstrip(".")


def _short(value: Any, most: int = 300) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= most else f"{text[:most]}…"
