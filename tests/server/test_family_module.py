"""A server whose model is of a family that the package does not have, and that takes no videos."""

import subprocess
import sys
from collections.abc import Iterator

import openai
import pytest

from clips import make_clip
from server.media import data_url, image_part, text_part
from server.running import RunningServer, running

STILLS = """
import dataclasses
from sightline.models.families.qwen3_vl import FAMILY as QWEN3

def read_spec(config):
    return dataclasses.replace(QWEN3.read_spec(config), family="stills")

def read_processor(files, spec):
    return dataclasses.replace(QWEN3.read_processor(files, spec), video=None)

FAMILY = dataclasses.replace(
    QWEN3, name="stills", model_type="stills_vl", read_spec=read_spec, read_processor=read_processor
)
"""


@pytest.fixture(scope="module")
def stills(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("stills")
    module, model = folder / "stills.py", folder / "model"
    module.write_text(STILLS)
    new = ["model", "new", str(model), "--family", "stills", "--family-module", str(module)]
    subprocess.run([sys.executable, "-m", "sightline.cli.main", *new], check=True)
    flags = ("--family-module", str(module), "--served-model-name", "sightline-embedded")
    with running(folder, str(model), *flags, "--kv-cache-gb", "0.1", "--embedding-cache-gb", "0.05") as made:
        yield made


def test_images_are_answered(stills: RunningServer) -> None:
    """Red if the API process or the engine process does not know the family."""
    answer = stills.chat([image_part(1), text_part("What is it?")])
    assert answer.usage.completion_tokens > 0 and answer.usage.prompt_tokens > 60


def test_a_video_is_refused_by_the_models_name(stills: RunningServer) -> None:
    """Red if a video reaches a model that takes none, or the answer is no 400 that names the model."""
    part = {"type": "video_url", "video_url": {"url": data_url(make_clip(8), "video/x-msvideo")}}
    with pytest.raises(openai.BadRequestError, match=r"The model \S+/model takes no videos, and the prompt has 1\."):
        stills.chat([part, text_part("What moves?")])
