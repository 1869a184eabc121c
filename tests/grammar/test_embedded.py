"""The embedded model answers in forms, in batches and as a stream; forms that are wrong are refused at once."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from parity.conversations import picture
from sightline import LLM, SamplingParams, StructuredOutput
from sightline.errors import PromptError

SCHEMA = {
    "type": "object",
    "properties": {"read": {"type": "string", "maxLength": 12}, "sure": {"type": "boolean"}},
    "required": ["read", "sure"],
    "additionalProperties": False,
}
FORM = StructuredOutput("json_schema", json.dumps(SCHEMA))


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(device="cpu", kv_cache_gb=0.2, embedding_cache_gb=0.05) as made:
        yield made


def assert_read(text: str) -> None:
    value = json.loads(text)
    assert set(value) == {"read", "sure"} and len(value["read"]) <= 12 and type(value["sure"]) is bool


def question(seed: int) -> list[dict[str, Any]]:
    parts = [{"type": "image", "image": picture(96, 64, seed)}, {"type": "text", "text": "What does the sign say?"}]
    return [{"role": "user", "content": parts}]


def test_schemas_hold_at_high_temperature(llm: LLM) -> None:
    answers = llm.chat(
        [question(seed) for seed in range(6)], SamplingParams(max_tokens=400, temperature=1.5, seed=1, n=3, structured=FORM)
    )
    assert len(answers) == 18 and sum(answer.finish_reason == "stop" for answer in answers) >= 12
    for answer in answers:
        if answer.finish_reason == "stop":
            assert_read(answer.text)


def test_streams(llm: LLM) -> None:
    async def collect() -> tuple[str, Any]:
        pieces, last = [], None
        async for update in llm.stream(question(1), SamplingParams(max_tokens=400, temperature=0, structured=FORM)):
            pieces.append(update.text)
            last = update.completion
        return "".join(pieces), last

    text, completion = asyncio.run(collect())
    assert completion.text == text and completion.finish_reason == "stop"
    assert_read(text)


def test_a_cut_answer_says_so(llm: LLM) -> None:
    answer = llm.chat(question(2), SamplingParams(max_tokens=5, temperature=0, structured=FORM))
    assert answer.finish_reason == "length" and len(answer.token_ids) == 5 and answer.text.startswith("{")


def test_a_wrong_form_is_refused_before_anything_is_queued(llm: LLM) -> None:
    with pytest.raises(PromptError, match="strin"):
        llm.chat(question(1), SamplingParams(structured=StructuredOutput("json_schema", '{"type": "strin"}')))
    assert not llm.engine.has_work
