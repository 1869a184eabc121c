"""A function that the model must call, its result, and the answer after it.

sightline serve &
python examples/tools.py [URL]
"""

import json
import os
import sys

import openai

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
client = openai.OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("SIGHTLINE_API_KEY", "unused"))
tool = {
    "type": "function",
    "function": {
        "name": "zoom",
        "description": "Looks closer at a part of the image.",
        "parameters": {
            "type": "object",
            "properties": {"corner": {"enum": ["left", "right"]}, "factor": {"type": "integer", "minimum": 2, "maximum": 4}},
            "required": ["corner", "factor"],
        },
    },
}
messages = [{"role": "user", "content": "Zoom in on a corner."}]
first = client.chat.completions.create(
    model="auto", messages=messages, tools=[tool], tool_choice="required", parallel_tool_calls=False, max_tokens=64
)
(call,) = first.choices[0].message.tool_calls
print("called", call.function.name, json.loads(call.function.arguments))
messages += [first.choices[0].message.model_dump(exclude_none=True)]
messages += [{"role": "tool", "tool_call_id": call.id, "content": "The corner is empty."}]
second = client.chat.completions.create(model="auto", messages=messages, tools=[tool], tool_choice="none", max_tokens=16)
print("answered", repr(second.choices[0].message.content))
