"""/v1/messages and its count_tokens, as Anthropic's clients read them. tests/clients drives their real one."""

import base64
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from PIL import Image

from media.pdfs import no_pages, pdf, picture_pdf
from server.media import data_url, image_part, png, text_part
from server.running import MODEL, RunningServer, wait_for
from server.test_files_and_frames import file_part
from sightline import data
from sightline.prompt.template import ChatTemplate
from sightline.server.errors import ApiError
from sightline.server.messages_api.body import MessagesRequest
from sightline.server.messages_api.translation import refuse_thoughts, translated

DEMO = Path(data.__file__).parent / "demo"

ZOOM = {
    "name": "zoom",
    "description": "Look closer.",
    "input_schema": {"type": "object", "properties": {"x": {"enum": [1, 2, 3]}}, "required": ["x"]},
}
IMAGE = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": data_url(png(1)).partition(",")[2]},
    "cache_control": {"type": "ephemeral"},
}
NOTE = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "A blue door."}, "title": "Notes"}
QUESTION = {"type": "text", "text": "What does the sign say?", "cache_control": {"type": "ephemeral"}}


def post(server: RunningServer, content: Any = "Hello", path: str = "/v1/messages", **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "max_tokens": 8, "temperature": 0, "messages": [{"role": "user", "content": content}], **fields}
    return server.http.post(path, json=body)


def ask(server: RunningServer, content: Any = "Hello", **fields: Any) -> dict[str, Any]:
    response = post(server, content, **fields)
    assert response.status_code == 200, response.text
    return dict(response.json())


def text_of(message: dict[str, Any]) -> str:
    return "".join(block["text"] for block in message["content"])


def test_answers_are_those_of_chat(server: RunningServer) -> None:
    """Red when the translation builds another prompt, or counts otherwise."""
    wanted = server.chat([image_part(1), text_part("What does the sign say?")])
    told = ask(server, [IMAGE, QUESTION])
    assert text_of(told) == wanted.choices[0].message.content and told["id"].startswith("msg_")
    assert (told["type"], told["role"], told["stop_reason"], told["stop_sequence"]) == (
        "message",
        "assistant",
        "end_turn",
        None,
    )
    usage = told["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == wanted.usage.prompt_tokens
    assert usage["output_tokens"] == wanted.usage.completion_tokens
    counted = post(server, [IMAGE, QUESTION], "/v1/messages/count_tokens")
    assert counted.json() == {"input_tokens": wanted.usage.prompt_tokens}


def test_what_tools_gave_becomes_messages_of_its_own(server: RunningServer) -> None:
    """Between and before the other blocks of a turn. Red when the prompt is not that of the same chat."""
    turns = [
        {"role": "user", "content": "Look."},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": ""},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "a", "name": "zoom", "input": {"x": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "a",
                    "content": [{"type": "text", "text": "none"}, IMAGE],
                    "is_error": True,
                },
                {"type": "text", "text": "And now?"},
            ],
        },
    ]
    call = {"id": "a", "type": "function", "function": {"name": "zoom", "arguments": '{"x": 1}'}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": [call]},
        {"role": "tool", "content": [text_part("Error: none"), image_part(1)], "tool_call_id": "a"},
        {"role": "user", "content": "And now?"},
    ]
    function = {"name": "zoom", "description": "Look closer.", "parameters": ZOOM["input_schema"]}
    tools = [{"type": "function", "function": function}]
    wanted = server.http.post("/tokenize", json={"messages": messages, "tools": tools}).json()["count"]
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    body = {"messages": turns, "system": system, "tools": [ZOOM]}
    assert server.http.post("/v1/messages/count_tokens", json=body).json() == {"input_tokens": wanted}


def test_a_last_turn_of_the_assistant_goes_on(server: RunningServer) -> None:
    """Red when a new turn is begun, or the text is repeated."""
    messages = [{"role": "user", "content": "What does the sign say?"}, {"role": "assistant", "content": "It says "}]
    wanted = server.post(
        messages=messages,
        continue_final_message=True,
        add_generation_prompt=False,
        max_tokens=4,
        temperature=0,
        ignore_eos=True,
    ).json()
    told = ask(server, messages=messages, max_tokens=4, ignore_eos=True)
    assert text_of(told) == wanted["choices"][0]["message"]["content"]
    assert sum(told["usage"][name] for name in ("input_tokens", "cache_read_input_tokens")) == wanted["usage"]["prompt_tokens"]


def events(server: RunningServer, content: Any = "Hello", **fields: Any) -> list[dict[str, Any]]:
    """What a stream says, whose event lines must be the types."""
    found = []
    for block in post(server, content, stream=True, **fields).text.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def test_events_of_a_text(server: RunningServer) -> None:
    found = events(server, max_tokens=5, ignore_eos=True)
    names = [event["type"] for event in found]
    deltas = [event["delta"] for event in found if event["type"] == "content_block_delta"]
    assert names == [
        *("message_start", "content_block_start"),
        *["content_block_delta"] * len(deltas),
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    assert "".join(delta["text"] for delta in deltas) == text_of(ask(server, max_tokens=5, ignore_eos=True))
    assert {delta["type"] for delta in deltas} == {"text_delta"}
    assert found[0]["message"]["content"] == [] and found[0]["message"]["stop_reason"] is None
    assert found[0]["message"]["usage"]["input_tokens"] > 0
    assert found[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert found[-2]["usage"]["output_tokens"] == 5


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "zoom"}], ids=["any", "named"])
def test_a_call_whole_and_streamed(server: RunningServer, choice: dict[str, Any]) -> None:
    fields: dict[str, Any] = {
        "tools": [ZOOM],
        "tool_choice": {**choice, "disable_parallel_tool_use": True},
        "max_tokens": 100,
    }
    told = ask(server, "Look at x = 2.", **fields)
    (call,) = told["content"]
    assert (call["type"], call["name"], told["stop_reason"]) == ("tool_use", "zoom", "tool_use")
    assert call["input"]["x"] in (1, 2, 3) and call["id"].startswith("toolu_")
    found = events(server, "Look at x = 2.", **fields)
    assert found[1]["content_block"] == {"type": "tool_use", "id": found[1]["content_block"]["id"], "name": "zoom", "input": {}}
    pieces = [event["delta"]["partial_json"] for event in found if event["type"] == "content_block_delta"]
    assert json.loads("".join(pieces)) == call["input"]


def test_a_stop_sequence_is_told(server: RunningServer) -> None:
    picture = base64.b64encode((DEMO / "sign.png").read_bytes()).decode()
    sign = {**IMAGE, "source": {"type": "base64", "media_type": "image/png", "data": picture}}
    free = text_of(ask(server, [sign, QUESTION]))
    told = ask(server, [sign, QUESTION], stop_sequences=[free[1:3]])
    assert (told["stop_reason"], told["stop_sequence"], text_of(told)) == ("stop_sequence", free[1:3], free[:1])


def test_forms(server: RunningServer) -> None:
    schema = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"]}
    told = ask(server, output_config={"format": {"type": "json_schema", "schema": schema}}, max_tokens=40)
    assert json.loads(text_of(told))["colour"] in ("red", "blue")


@pytest.mark.parametrize(
    ("fields", "param", "instead"),
    [
        ({"tempreature": 1}, "tempreature", "is not supported"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type", "run them yourself"),
        ({"mcp_servers": [{}]}, "mcp_servers", "call them yourself"),
        ({"max_tokens": None}, "max_tokens", "is wrong"),
        ({"stop_sequences": [""]}, "stop_sequences", "1 to 1024"),
        ({"output_config": {"effort": "high"}}, "output_config.effort", "leave it out"),
        ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "messages[0].content[0].type", "'audio'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "file", "file_id": "f"}}]}]},
            "messages[0].content[0].source.type",
            "Send 'base64' or 'url'",
        ),
        (
            {"messages": [{"role": "user", "content": [{**NOTE, "source": {**NOTE["source"], "media_type": "text/html"}}]}]},
            "messages[0].content[0].source.media_type",
            "'text/html'",
        ),
        (
            {"messages": [{"role": "user", "content": [{**NOTE, "citations": {"enabled": True}}]}]},
            "messages[0].content[0].citations.enabled",
            "quotations",
        ),
        ({"media_io_kwargs": {"video": {"fps": 0}}}, "fps", "above 0"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else None,
)
def test_refusals_name_the_field_and_what_to_use(server: RunningServer, fields: Any, param: str, instead: str) -> None:
    response = post(server, **fields)
    error = response.json()
    assert response.status_code == 400 and error["type"] == "error", error
    assert (error["error"]["type"], error["error"]["param"]) == ("invalid_request_error", param), error
    assert instead in error["error"]["message"]


@pytest.mark.parametrize("is_error", [False, True])
def test_what_is_wrong_with_content_is_told_by_its_place(server: RunningServer, is_error: bool) -> None:
    """Blocks of a turn become several messages, of which the client knows nothing, and some blocks several parts."""

    def told(block: dict[str, Any]) -> str:
        result = {"type": "tool_result", "tool_use_id": "a", "content": [NOTE, block], "is_error": is_error}
        return str(post(server, [QUESTION, result]).json()["error"]["message"])

    place, wrong = "messages[0].content[1].content[1]", "<|image_pad|>"
    text = {**QUESTION, "text": wrong}
    assert told(text).startswith(f"{place}.text contains '{wrong}'")
    assert told({**NOTE, "title": wrong}).startswith(f"{place}.title contains '{wrong}'")
    assert told({**NOTE, "source": {**NOTE["source"], "data": wrong}}).startswith(f"{place}.source.data contains '{wrong}'")


# ---- Documents


def document(data: bytes, **fields: Any) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "application/pdf", "data": base64.b64encode(data).decode()}
    return {"type": "document", "source": source, "cache_control": {"type": "ephemeral"}, **fields}


def test_a_document_is_read_as_a_file_of_chat_is(server: RunningServer) -> None:
    """By its data and by a URL. Red when its pages are not seen."""
    file = picture_pdf(Image.open(DEMO / "sign.png"))
    wanted = server.chat([file_part(file), text_part("What does the sign say?")], max_tokens=20)
    assert "PIANO" in str(wanted.choices[0].message.content)
    url = {"type": "url", "url": data_url(file, "application/pdf")}
    for block in (document(file), {"type": "document", "source": url}):
        told = ask(server, [block, QUESTION], max_tokens=20)
        assert text_of(told) == wanted.choices[0].message.content
        usage = told["usage"]
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == wanted.usage.prompt_tokens


def test_texts_titles_and_tools_documents_are_told(server: RunningServer) -> None:
    """Red when the prompt is not that of the same chat."""
    file = pdf((200, 100), (100, 100))
    call = {"id": "a", "type": "function", "function": {"name": "zoom", "arguments": '{"x": 1}'}}
    messages = [
        {"role": "user", "content": [text_part("Notes\n"), text_part("Of May\n"), text_part("A blue door.\n")]},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": [text_part("Plan\n"), file_part(file)], "tool_call_id": "a"},
    ]
    turns = [
        {"role": "user", "content": [{**NOTE, "context": "Of May", "citations": {"enabled": False}}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "zoom", "input": {"x": 1}}]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "a", "content": [document(file, title="Plan")]}],
        },
    ]
    wanted = server.http.post("/tokenize", json={"messages": messages}).json()["count"]
    assert server.http.post("/v1/messages/count_tokens", json={"messages": turns}).json() == {"input_tokens": wanted}


def test_documents_that_cannot_be_read_are_called_by_their_title(server: RunningServer) -> None:
    told = post(server, [document(no_pages(), title="Plan"), QUESTION]).json()["error"]["message"]
    assert told == "PDF Plan cannot be read: it is damaged or has no pages."


# ---- Models


def test_models_as_its_clients_list_them(server: RunningServer) -> None:
    """Red without its fields, or when other clients get them."""
    headers = {"anthropic-version": "2023-06-01"}
    listed = server.http.get("/v1/models", headers=headers).json()
    plain = server.http.get("/v1/models").json()
    assert plain["object"] == "list" and [one["id"] for one in plain["data"]] == [one["id"] for one in listed["data"]]
    assert (listed["first_id"], listed["last_id"], listed["has_more"]) == ("sightline-embedded", "other-name", False)
    for one, other in zip(listed["data"], plain["data"], strict=True):
        assert (one["type"], one["display_name"], one["max_input_tokens"]) == ("model", one["id"], other["max_model_len"])
        assert datetime.fromisoformat(one["created_at"]).timestamp() == other["created"]
        assert server.http.get(f"/v1/models/{one['id']}", headers=headers).json() == one


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("POST", "/v1/messages/batches", 404, "not_found_error"),
        ("GET", "/v1/messages", 405, "invalid_request_error"),
        ("POST", "/v1/messages", 400, "invalid_request_error"),
        ("POST", "/v1/messages/count_tokens", 400, "invalid_request_error"),
    ],
)
def test_errors_have_its_shape(server: RunningServer, method: str, path: str, status: int, kind: str) -> None:
    response = server.http.request(method, path, content=b"{")
    assert response.status_code == status
    assert (response.json()["type"], response.json()["error"]["type"]) == ("error", kind)


def test_pages_of_other_sites_are_refused_in_its_shape(server: RunningServer) -> None:
    headers = {"Origin": "https://elsewhere.example"}
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        response = server.http.post(path, json={}, headers=headers)
        assert response.status_code == 403 and response.json()["error"]["type"] == "permission_error", path


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
def test_requests_are_logged_and_counted(server: RunningServer, path: str) -> None:
    """Red when an endpoint goes by without a line in the log, or is no route of the metrics."""
    body = {"max_tokens": 2, "messages": [{"role": "user", "content": "a-secret-word"}]}
    if path == "/v1/responses":
        body = {"max_output_tokens": 2, "input": "a-secret-word"}
    response = server.http.post(path, json={**body, "ignore_eos": True})
    assert response.headers["x-request-id"] == response.json()["id"]
    line = wait_for(lambda: next((one for one in server.log if one["id"] == response.json()["id"]), None), "a line in the log")
    assert (line["route"], line["status"], line["completion_tokens"]) == (path, 200, 2)
    assert "a-secret-word" not in json.dumps(server.log) + server.errors
    assert f'route="{path}",status="200"' in server.http.get("/metrics").text


@pytest.mark.parametrize(
    ("source", "thinking", "wanted"),
    [
        ("{{ enable_thinking }}{{ messages }}", {"type": "enabled", "budget_tokens": 1024}, {"enable_thinking": True}),
        ("{{ enable_thinking }}{{ messages }}", {"type": "disabled"}, {"enable_thinking": False}),
        ("{{ enable_thinking }}{{ messages }}", {"type": "adaptive"}, None),
        ("{{ messages }}", {"type": "enabled", "budget_tokens": 1024}, None),
    ],
)
def test_thinking_is_the_templates_switch(source: str, thinking: dict[str, Any], wanted: Any) -> None:
    fields = {"max_tokens": 1, "messages": [{"role": "user", "content": "x"}], "thinking": thinking}
    body = msgspec.convert(fields, MessagesRequest)
    assert translated(body, ChatTemplate(source)).chat.chat_template_kwargs == wanted
    refuse_thoughts(body, opens_reasoning=False)
    if thinking["type"] == "disabled":
        with pytest.raises(ApiError, match="thinking is disabled, but"):
            refuse_thoughts(body, opens_reasoning=True)
