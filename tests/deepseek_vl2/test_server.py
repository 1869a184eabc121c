"""Through a server: pictures alone and beside many others, a video refused, another server that encodes."""

import base64
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from PIL import Image

from clips import make_clip
from deepseek_vl2.oracle import joined_oracle
from engine.harness import loaded, request_of
from parity.conversations import picture
from server.media import data_url, text_part
from server.running import running
from sightline.engine.remote.check_item import check_item
from sightline.errors import MediaError

ANSWER = 6


def png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def image_part(image: Image.Image) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(png(image)).decode()}"}}


def test_over_http(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    """Red if a process of the server does not read the files, counts the images of a request otherwise than the library, or a
    video is not refused by the model's name."""
    folder = checkpoints["tiny-mla"]
    pictures = [picture(640, 320, 7), picture(333, 777, 8), picture(60, 50, 9)]
    flags = ("--model", str(folder), "--max-model-len", "2048", "--dtype", "float32", "--kv-cache-gb", "0.1")
    with running(tmp_path, *flags, "--embedding-cache-gb", "0.05", "--served-model-name", "sightline-embedded") as server:
        for count in (1, 3, 2, 1):  # the last from the prefix cache
            own = pictures[:count]
            request = request_of(folder, *own, "What is it?")
            rows = joined_oracle(folder).rows(own)
            expected = joined_oracle(folder).greedy(request, rows, ANSWER)
            content = [*(image_part(image) for image in own), text_part("What is it?")]
            found = server.chat(content, max_tokens=ANSWER, extra_body={"ignore_eos": True})
            assert found.choices[0].message.content == loaded(folder).tokenizer.decode(expected)
            assert found.usage.prompt_tokens == len(request)
        assert found.usage.prompt_tokens_details.cached_tokens > request.spans[0].start + request.spans[0].count
        video = {"type": "video_url", "video_url": {"url": data_url(make_clip(8), "video/x-msvideo")}}
        with pytest.raises(openai.BadRequestError, match=r"The model \S+/tiny-mla takes no videos, and the prompt has 1\."):
            server.chat([video, text_part("What moves?")])


def test_items_that_another_server_may_encode(checkpoints: dict[str, Path]) -> None:
    """Red if tiles with pixels behind their whole patches are refused, or grids of more patches than there are are not."""
    processor = loaded(checkpoints["tiny"]).processor
    (item,) = request_of(checkpoints["tiny"], picture(1371, 911, 1)).items
    check_item(item, processor)
    with pytest.raises(MediaError, match=r"a grid of \[8, 5, 6\] patches where its view makes \[8, 5, 5\]"):
        check_item(replace(item, grids=(item.grids[0], (8, 5, 6))), processor)
    with pytest.raises(MediaError, match="do not fit each other"):
        check_item(replace(item, views=(replace(item.views[0], tile=(48, 48), canvas=(48, 48)), item.views[1])), processor)
