"""Through a server: answers with and without a picture, and what is refused over HTTP."""

import base64
import io
from pathlib import Path

import openai
import pytest

from engine.harness import loaded, plain_answer, request_of
from parity.conversations import picture
from server.media import text_part
from server.running import running

ANSWER = 8


@pytest.mark.slow
def test_through_a_server(phi4: Path, tmp_path: Path) -> None:
    """Red if a process of the server does not find the family, or the adapter of a request is lost between them."""
    buffer = io.BytesIO()
    picture(101, 99, 7).save(buffer, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    seen, text = request_of(phi4, buffer.getvalue(), "What is it?"), request_of(phi4, "What is it?")
    contents = [[{"type": "image_url", "image_url": {"url": url}}, text_part("What is it?")], [text_part("What is it?")]]
    flags = ("--model", str(phi4), "--max-model-len", "2048", "--dtype", "float32", "--worker-process")
    more = ("--kv-cache-gb", "0.1", "--embedding-cache-gb", "0.05", "--served-model-name", "sightline-embedded")
    with running(tmp_path, *flags, *more) as server:
        for _ in range(2):  # the second from the prefix cache
            for content, request in zip(contents, (seen, text), strict=True):
                found = server.chat(content, max_tokens=ANSWER, extra_body={"ignore_eos": True})
                expected = plain_answer(phi4, request, ANSWER)
                assert found.choices[0].message.content == loaded(phi4).tokenizer.decode(expected)
                assert found.usage.prompt_tokens == len(request)
        audio = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
        with pytest.raises(openai.BadRequestError, match=r"'messages\[0\].content\[0\].type' is 'input_audio', which is not"):
            server.chat([audio, text_part("What is said?")])
        video = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}
        with pytest.raises(openai.BadRequestError, match=r"takes no videos, and the prompt has 1"):
            server.chat([video, text_part("What moves?")])
