import json

import openai
from seen import MODEL, SIGN, URL, Seen, check

client = openai.OpenAI(base_url=f"{URL}/v1", api_key="unused", max_retries=0)
picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{SIGN}", "detail": "auto"}}
asked = [{"role": "user", "content": [picture, {"type": "text", "text": "What does the sign say?"}]}]
ZOOM = {"name": "zoom", "description": "Look closer.", "parameters": Seen.model_json_schema()}

# chat
answer = client.chat.completions.create(model=MODEL, messages=asked, temperature=0, max_tokens=20)
assert "PIANO" in answer.choices[0].message.content
options = {"include_usage": True, "continuous_usage_stats": True}
chunks = list(client.chat.completions.create(model=MODEL, messages=asked, temperature=0, stream=True, stream_options=options))
assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == answer.choices[0].message.content
counts = [chunk.usage.completion_tokens for chunk in chunks]
assert counts == sorted(counts) and counts[-1] == answer.usage.completion_tokens
hello = [{"role": "user", "content": "Hello"}]
parsed = client.chat.completions.parse(model=MODEL, messages=hello, response_format=Seen, max_tokens=100)
check(parsed.choices[0].message.parsed)
with client.chat.completions.stream(model=MODEL, messages=hello, response_format=Seen, max_tokens=100) as stream:
    check(stream.get_final_completion().choices[0].message.parsed)
tools = [{"type": "function", "function": ZOOM}]
called = client.chat.completions.create(
    model=MODEL, messages=hello, tools=tools, tool_choice="required", parallel_tool_calls=False
)
check(Seen(**json.loads(called.choices[0].message.tool_calls[0].function.arguments)))

# responses
part = {"type": "input_image", "image_url": f"data:image/png;base64,{SIGN}", "detail": "auto"}
asked = [{"role": "user", "content": [part, {"type": "input_text", "text": "What does the sign say?"}]}]
response = client.responses.create(model=MODEL, input=asked, temperature=0)
assert "PIANO" in response.output_text and response.status == "completed" and response.usage.output_tokens > 1
with client.responses.stream(model=MODEL, input=asked, temperature=0) as stream:
    text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert text == stream.get_final_response().output_text == response.output_text
check(client.responses.parse(model=MODEL, input="Hello", text_format=Seen, max_output_tokens=100).output_parsed)
tools = [{"type": "function", **ZOOM, "strict": False}]
choice = {"type": "function", "name": "zoom"}
turn = client.responses.create(model=MODEL, input="Look.", tools=tools, tool_choice=choice, max_output_tokens=100)
(call,) = turn.output
check(Seen(**json.loads(call.arguments)))
given = {"type": "function_call_output", "call_id": call.call_id, "output": "nothing"}
after = client.responses.create(model=MODEL, input=[{"role": "user", "content": "Look."}, *turn.output, given], tools=tools)
assert after.usage.input_tokens > turn.usage.input_tokens
again = client.responses.create(model=MODEL, input=[*asked, *response.output, {"role": "user", "content": "Sure?"}])
assert again.usage.input_tokens > response.usage.input_tokens
try:
    client.responses.create(model=MODEL, input="x", previous_response_id=response.id)
except openai.BadRequestError as error:
    assert error.param == "previous_response_id", error
else:
    raise AssertionError("previous_response_id was accepted")
print("passed")
