"""Training sees the prompts that the package builds: ids, places of rows and positions. Red when the two drift apart."""

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2] / "training"))

from batches import IGNORED, Encoder, batches, make_batch
from sightline.config import MediaConfig
from sightline.evals.signs import SKILL_NAMES, make_example
from sightline.evals.signs.conversation import encode_clip
from sightline.models.registry import read_model_spec, read_processor_spec
from sightline.prompt.builder import PromptBuilder
from start import start


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("start")
    start(made, examples=20)
    return made


@pytest.mark.parametrize("skill", SKILL_NAMES)
def test_prompts_are_the_packages(folder: Path, skill: str) -> None:
    encoder = Encoder(folder)
    spec = read_model_spec(folder)
    processor = read_processor_spec(folder, spec, MediaConfig())
    builder = PromptBuilder(
        encoder.template, encoder.tokenizer, spec, processor, MediaConfig(), spec.text.max_position, "a model"
    )
    for seed in range(3):
        example = make_example(seed, "train", skill)
        ids, labels, spans, items, first = encoder.encode(example)
        if example.frames is not None:
            media = [{"type": "video", "video": encode_clip(example.frames, example.fps)}]
        else:
            media = [{"type": "image", "image": Image.fromarray(image)} for image in example.images]
        turn = {"role": "user", "content": [*media, {"type": "text", "text": example.turns[0].question}]}
        request = builder.chat([turn])
        assert request.token_ids.tolist() == ids[:first].tolist()
        assert request.spans == spans and [item.grid for item in request.items] == [item.grid for item in items]
        batch = make_batch([example, example], encoder)
        assert np.array_equal(batch.positions[:, :first], request.positions)
        answer = ids[labels != IGNORED].tolist()
        expected = [t for turn in example.turns for t in (*encoder.tokenizer.encode(turn.answer), encoder.end)]
        assert answer == expected


def test_batches_share_a_layout_and_do_not_repeat(folder: Path) -> None:
    source = batches(folder, "train", 4, 0, 1, 1.0, {"sign": 1.0, "two_images": 1.0})
    seen: set[bytes] = set()
    for _ in range(6):
        batch = next(source)
        assert batch.pixels.shape == (4, *batch.layout.shape, 3) and batch.token_ids.shape == (4, batch.layout.tokens)
        assert (batch.texts[0] != "") == (batch.layout.skill == "sign")
        assert batch.pixels.tobytes() not in seen
        seen.add(batch.pixels.tobytes())
