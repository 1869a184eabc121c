"""Rows of a table as requests, and what is kept of their answers; without Ray."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from PIL import Image

from server.media import png
from sightline.config import ModelConfig
from sightline.errors import ConfigError, UserError
from sightline.ray.checkpoint import Checkpoint, key_of
from sightline.ray.rows import RowPlan, _bodies


def plan(**named: Any) -> RowPlan:
    fields = {"prompt": "What?", "image_column": "image", "sampling": {"max_tokens": 3}, "checkpoint": None}
    return RowPlan(**{**fields, "answer_column": "answer", "error_column": "error", **named})


def urls(images: list[Any]) -> list[Any]:
    """Of each row's images, or the sentence of its error."""
    found: list[Any] = []
    for body in _bodies(pyarrow.table({"image": images}), plan()):
        if isinstance(body, UserError):
            found.append(str(body))
            continue
        asked = json.loads(body)
        assert asked["max_tokens"] == 3
        content = asked["messages"][0]["content"]
        assert content[-1] == {"type": "text", "text": "What?"}
        found.append([part["image_url"]["url"] for part in content[:-1]])
    return found


def test_paths_urls_bytes_and_none() -> None:
    assert urls(["a.png", "https://a.example/b.png", None]) == [["a.png"], ["https://a.example/b.png"], []]
    ((url,),) = urls([png(1)])
    assert base64.b64decode(url.split(",")[1]) == png(1)


def test_mappings_and_lists() -> None:
    """As tables of images have them."""
    both = urls([{"bytes": png(1), "path": "x.png"}, {"bytes": None, "path": "y.png"}])
    assert base64.b64decode(both[0][0].split(",")[1]) == png(1) and both[1] == ["y.png"]
    assert urls([["a.png", "b.png"], []]) == [["a.png", "b.png"], []]


def test_what_is_no_image_is_said_of_its_row() -> None:
    assert urls([3]) == ["An image is a path, a URL, bytes or an array of pixels, not int."]
    assert urls([{"bytes": None, "path": None}]) == ["An image is a path, a URL, bytes or an array of pixels, not dict."]


def test_pixels_lose_nothing() -> None:
    from sightline.ray.rows import _url

    pixels = np.random.default_rng(0).integers(0, 255, (9, 7, 3), np.uint8)
    data = base64.b64decode(_url(pixels).split(",")[1])
    assert (np.asarray(Image.open(io.BytesIO(data))) == pixels).all()
    with pytest.raises(UserError, match="An image is an array that is no picture"):
        _url(np.zeros((2, 2, 7)))


def test_a_prompt_may_be_made_of_a_row() -> None:
    table = pyarrow.table({"image": [None, None], "name": ["a", "b"]})
    first, second = _bodies(table, plan(prompt=lambda row: f"Is it {row['name']}?" if row["name"] == "a" else row["gone"]))
    assert isinstance(first, bytes) and json.loads(first)["messages"][0]["content"][-1]["text"] == "Is it a?"
    assert isinstance(second, UserError) and str(second) == "prompt() failed on this row with KeyError: 'gone'"


def test_a_checkpoint_knows_what_was_answered(tmp_path: Path) -> None:
    model = ModelConfig(model="m")
    keys = [key_of(model, f"{number}".encode()) for number in range(3)]
    first, second = Checkpoint(tmp_path / "new" / "folder"), Checkpoint(tmp_path / "new" / "folder")
    first.add(keys[0], "one\nwith a line")
    second.add(keys[1], "two ☃")
    assert first.find(keys[0]) is None  # of those that were there when it began
    (torn,) = [path for path in (tmp_path / "new" / "folder").iterdir() if b"one" in path.read_bytes()]
    with torn.open("ab") as file:
        file.write(b'{"key":"' + keys[2].hex().encode())
    again = Checkpoint(tmp_path / "new" / "folder")
    assert [again.find(key) for key in keys] == ["one\nwith a line", "two ☃", None]


def test_another_request_or_model_is_another_row() -> None:
    bodies = (b"a", b"b")
    keys = {
        key_of(model, body) for model in (ModelConfig(), ModelConfig(model="m"), ModelConfig(revision="r")) for body in bodies
    }
    assert len(keys) == 6


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(ConfigError, match=r"x\.jsonl is no file of a checkpoint; name another folder"):
        Checkpoint(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be used"):
        Checkpoint(tmp_path / "file")
