"""Tools that must be called are called, and the parser finds the calls."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.harness import driver, loaded, request_of
from sightline.stream.answer_parts import AnswerParser, ToolCallDelta
from sightline.stream.tool_grammar import tool_call_grammar

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "zoom",
            "parameters": {
                "type": "object",
                "properties": {
                    "x": {"type": "integer", "minimum": 0, "maximum": 99},
                    "label": {"type": "string", "maxLength": 5},
                },
                "required": ["x"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": 'say "ü"\\'}},
]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "zoom"}}])
def test_forced_calls_come_back_from_the_parser(tiny_checkpoints: dict[str, Path], choice: Any) -> None:
    """Random weights call the tools, in order, with arguments that follow the schema, and say nothing else."""
    folder = tiny_checkpoints["qwen3-vl"]
    structured = tool_call_grammar(TOOLS, choice)
    assert structured is not None
    run = driver(folder, kv_cache_gb=0.1)
    options = {"tokens": 600, "temperature": 1.5, "end_tokens": frozenset(loaded(folder).defaults.eos_token_ids)}
    request = request_of(folder, "x")
    numbers = [run.add(request, structured=structured, seed=seed, **options) for seed in range(12)]
    run.run()
    named = set()
    done = [answer for number in numbers if (answer := run.completions[number, 0]).finish_reason == "stop"]
    assert len(done) >= 6
    for answer in done:
        for forced in (False, True):
            parser = AnswerParser(tools=True, reasoning=False, forced_calls=forced)
            deltas = [delta for char in answer.text for delta in parser.feed(char)] + parser.finish()
            assert deltas and all(isinstance(delta, ToolCallDelta) for delta in deltas)
            calls: dict[int, list[str]] = {}
            for delta in deltas:
                calls.setdefault(delta.index, []).append(delta.name if delta.name is not None else delta.arguments)
            for name, *pieces in calls.values():
                named.add(name)
                arguments = json.loads("".join(pieces))
                if name == "zoom":
                    assert (
                        0 <= arguments["x"] <= 99 and len(arguments.get("label", "")) <= 5 and set(arguments) <= {"x", "label"}
                    )
                else:
                    assert name == 'say "ü"\\' and arguments == {}
            assert choice == "required" or len(calls) == 1
    assert named == ({"zoom", 'say "ü"\\'} if choice == "required" else {"zoom"})
