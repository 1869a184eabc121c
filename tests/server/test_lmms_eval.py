"""What lmms-eval's `openai_compatible` sends and reads, through the openai client as it does.

Since 0.7 that is another name of its `openai`; before, it was a model of its own. Both call the model by `model_version=`.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from server.media import image_part, text_part
from server.running import MODEL, RunningServer, running

OF_ITS_OWN = "grok-2-latest"  # where --model_args has no model_version=
QUESTION = "What does the sign say?\nAnswer the question using a single word or phrase."


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    names = (MODEL, "Qwen/Qwen3-VL-8B-Instruct")
    with running(tmp_path_factory.mktemp("server"), "--served-model-name", *names) as made:
        yield made


def payload(seed: int, model_version: str, simple: bool) -> dict[str, Any]:
    """The simple model puts the text first, the chat model keeps the order of the document; pictures are PNG."""
    content = [text_part(QUESTION), image_part(seed)] if simple else [image_part(seed), text_part(QUESTION)]
    message = {"role": "user", "content": content}
    return {"messages": [message], "model": model_version, "max_tokens": 16, "temperature": 0}


def test_a_batch_of_the_simple_model(server: RunningServer) -> None:
    """All questions of a batch at once from an asynchronous client. Red if one is refused or answers change places."""

    async def ask(count: int) -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
            questions = [payload(seed, "Qwen/Qwen3-VL-8B-Instruct", simple=True) for seed in range(count)]
            return await asyncio.gather(*(client.chat.completions.create(**one) for one in questions))

    answers = asyncio.run(ask(8))
    for seed, answer in enumerate(answers):
        alone = server.openai.chat.completions.create(**payload(seed, MODEL, simple=True))
        assert answer.choices[0].message.content == alone.choices[0].message.content
        assert answer.model == "Qwen/Qwen3-VL-8B-Instruct" and answer.usage.completion_tokens > 0


def test_the_chat_model(server: RunningServer) -> None:
    """With every field that its options add. Red if one is refused, or if token counts that it logs are missing."""
    fields = {"top_p": 1.0, "seed": 1, "presence_penalty": 0.0, "frequency_penalty": 0.0, "n": 1}
    extra = {"chat_template_kwargs": {"enable_thinking": False}}
    answer = server.openai.chat.completions.create(**payload(1, MODEL, simple=False), **fields, extra_body=extra)
    assert isinstance(answer.choices[0].message.content, str)
    assert answer.usage.prompt_tokens > 10 and answer.usage.completion_tokens > 0
    assert answer.usage.completion_tokens_details.reasoning_tokens == 0


def test_names_that_it_takes_for_models_of_openai(server: RunningServer) -> None:
    """A name with o1, o3, o4 or gpt-5 in it is asked in another way."""
    asked = payload(1, "auto", simple=False)
    del asked["temperature"], asked["max_tokens"]
    answer = server.openai.chat.completions.create(**asked, max_completion_tokens=8, response_format={"type": "text"})
    assert answer.usage.completion_tokens <= 8


def test_without_a_model_version(server: RunningServer) -> None:
    """It asks for a model of its own then: an error names what is served. --accept-any-model-name takes it (test_limits.py)."""
    with pytest.raises(openai.NotFoundError, match=f"{OF_ITS_OWN}.*{MODEL}"):
        server.openai.chat.completions.create(**payload(1, OF_ITS_OWN, simple=True))
