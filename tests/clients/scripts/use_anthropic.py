import anthropic
from seen import MODEL, SIGN, URL, Seen, check

client = anthropic.Anthropic(base_url=URL, api_key="unused", max_retries=0)
cached = {"cache_control": {"type": "ephemeral"}}
picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": SIGN}, **cached}
asked = [{"role": "user", "content": [picture, {"type": "text", "text": "What does the sign say?"}]}]
system = [{"type": "text", "text": "Be brief.", **cached}]
cold = {"extra_body": {"temperature": 0}}

message = client.messages.create(model=MODEL, max_tokens=20, messages=asked, **cold)
assert "PIANO" in message.content[0].text and message.stop_reason == "end_turn"
with client.messages.stream(model=MODEL, max_tokens=20, messages=asked, **cold) as stream:
    assert "".join(stream.text_stream) == message.content[0].text
    final = stream.get_final_message()
assert final.usage.output_tokens == message.usage.output_tokens
total = final.usage.input_tokens + final.usage.cache_read_input_tokens
assert client.messages.count_tokens(model=MODEL, messages=asked).input_tokens == total

note = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "A blue door."}, "title": "Notes"}
noted = [{"role": "user", "content": [note, *asked[0]["content"]]}]
assert client.messages.count_tokens(model=MODEL, messages=noted).input_tokens > total
models = list(client.models.list())
assert models[0].type == "model" and models[0].display_name == models[0].id and models[0].created_at.year >= 2026
assert client.models.retrieve(models[0].id) == models[0]

tools = [{"name": "zoom", "description": "Look closer.", "input_schema": Seen.model_json_schema(), **cached}]
hello = [{"role": "user", "content": "Hello"}]
fields = {"model": MODEL, "max_tokens": 100, "system": system, "tools": tools, "messages": hello}
turn = client.messages.create(**fields, tool_choice={"type": "tool", "name": "zoom"})
(call,) = turn.content
assert turn.stop_reason == "tool_use"
check(Seen(**call.input))
with client.messages.stream(**fields, tool_choice={"type": "any", "disable_parallel_tool_use": True}) as stream:
    check(Seen(**stream.get_final_message().content[0].input))
given = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "nothing"}, picture]}
turns = [*hello, {"role": "assistant", "content": turn.content}, {"role": "user", "content": [given]}]
after = client.messages.create(**{**fields, "messages": turns, "max_tokens": 5}, tool_choice={"type": "auto"})
assert after.stop_reason in ("end_turn", "max_tokens")

for fields, kind in (
    ({"model": "absent"}, anthropic.NotFoundError),
    ({"extra_body": {"tempreature": 1}}, anthropic.BadRequestError),
):
    try:
        client.messages.create(**{"model": MODEL, "max_tokens": 5, "messages": hello, **fields})
    except kind as error:
        assert error.body["type"] == "error" and error.body["error"]["message"], error.body
    else:
        raise AssertionError(f"{fields} was accepted")
print("passed")
