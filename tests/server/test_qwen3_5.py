"""Qwen3.5 over HTTP: calls of tools in its own form, options of its template, and metrics of states."""

import json
from pathlib import Path

import pytest

from server.running import running

TOOL = {
    "type": "function",
    "function": {
        "name": "zoom",
        "parameters": {
            "type": "object",
            "properties": {"mode": {"enum": ["near", "far"]}, "exact": {"type": "boolean"}},
            "required": ["mode", "exact"],
        },
    },
}


@pytest.mark.slow
def test_calls_and_states_through_a_server(tiny_checkpoints: dict[str, Path], tmp_path: Path) -> None:
    """Red if the API process takes calls for JSON, the engine is asked for another form, or a metric of states is not told."""
    flags = ("--model", str(tiny_checkpoints["qwen3.5"]), "--max-model-len", "4096", "--dtype", "float32")
    with running(tmp_path, *flags, "--served-model-name", "m") as server:
        asked = [{"role": "user", "content": "Zoom in, please. " * 20}]
        for _ in range(2):
            found = server.openai.chat.completions.create(
                model="m", messages=asked, tools=[TOOL], tool_choice="required", max_tokens=200, temperature=0,
                parallel_tool_calls=False, extra_body={"chat_template_kwargs": {"enable_thinking": False}},
            )  # fmt: skip
        (call,) = found.choices[0].message.tool_calls or ()
        arguments = json.loads(call.function.arguments)
        assert call.function.name == "zoom" and not found.choices[0].message.content
        assert arguments["mode"] in ("near", "far") and isinstance(arguments["exact"], bool)
        assert found.usage is not None and found.usage.prompt_tokens_details.cached_tokens >= 1024
        lines = dict(line.rsplit(" ", 1) for line in server.http.get("/metrics").text.splitlines() if not line.startswith("#"))
        assert float(lines["sightline:state_snapshots_total"]) >= 1 and "sightline:state_tokens_lost_total" in lines
