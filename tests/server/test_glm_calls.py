"""A model whose template has calls of tools in GLM's form, over HTTP."""

import json
from pathlib import Path

import pytest

from server.running import MODEL, running
from server.test_qwen3_5 import TOOL

TEMPLATE = """{%- if tools -%}
<|im_start|>system
Call functions as <tool_call>{name}
<arg_key>{key}</arg_key>
<arg_value>{value}</arg_value>
</tool_call>{{ '\\n' ~ tools | tojson }}<|im_end|>
{% endif -%}
{%- for message in messages -%}
<|im_start|>{{ message.role ~ '\\n' ~ (message.content or '') }}
  {%- for call in message.tool_calls or [] -%}
    {{ '<tool_call>' ~ call.function.name ~ '\\n' }}
    {%- for key, value in call.function.arguments | items -%}
      {{ '<arg_key>' ~ key ~ '</arg_key>\\n<arg_value>' ~ (value if value is string else value | tojson) ~ '</arg_value>\\n' }}
    {%- endfor -%}
    </tool_call>
  {%- endfor -%}
<|im_end|>
{% endfor -%}
{{ '<|im_start|>assistant\\n' if add_generation_prompt }}"""


@pytest.mark.slow
def test_calls_through_a_server(tmp_path: Path) -> None:
    """Red if the API process takes calls for JSON, or the engine is asked for another form. Whole and as a stream."""
    (tmp_path / "template.jinja").write_text(TEMPLATE)
    with running(tmp_path, "--chat-template", str(tmp_path / "template.jinja")) as server:
        asked = [{"role": "user", "content": "Zoom in."}]
        fields = {"model": MODEL, "tools": [TOOL], "tool_choice": "required", "max_tokens": 200, "temperature": 0}
        found = server.openai.chat.completions.create(messages=asked, parallel_tool_calls=False, **fields)
        message = found.choices[0].message
        (call,) = message.tool_calls
        arguments = json.loads(call.function.arguments)
        assert call.function.name == "zoom" and not message.content and found.choices[0].finish_reason == "tool_calls"
        assert arguments["mode"] in ("near", "far") and isinstance(arguments["exact"], bool)
        streamed = server.openai.chat.completions.create(messages=asked, parallel_tool_calls=False, stream=True, **fields)
        deltas = [one for event in streamed for choice in event.choices for one in choice.delta.tool_calls or []]
        assert "".join(one.function.arguments or "" for one in deltas) == call.function.arguments
        # The call goes back with its result, and is written as the template has it.
        history = [*asked, message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "done"}]
        texts = server.post("/tokenize", messages=history, return_token_strs=True).json()["token_strs"]
        assert f"<arg_key>mode</arg_key>\n<arg_value>{arguments['mode']}</arg_value>" in "".join(texts).replace("Ċ", "\n")
