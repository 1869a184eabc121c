"""The tower alone: the embeddings of the whole model's, and nothing of the language model in memory."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import FAMILIES, IN_VIEWS
from device import DEVICE
from media.pictures import encoded
from parity.conversations import picture
from sightline.config import Config, EncoderConfig, EngineConfig, MediaConfig, ModelConfig
from sightline.engine.remote.identity import identity_of
from sightline.media.decode import decode_image
from sightline.media.item import item_of
from sightline.media.source import load_image
from sightline.models.checkpoint import Checkpoint
from sightline.models.files import ModelFiles, read_model_files
from sightline.types import MediaItem
from sightline.worker.load import load_worker
from sightline.worker.step_input import EncodeItem
from sightline.worker.tower import TowerWorker, load_tower


def config_of(folder: Path, **model: object) -> Config:
    chosen = ModelConfig(model=str(folder), device=DEVICE, dtype="float32", max_model_len=256, **model)  # type: ignore[arg-type]
    engine = EngineConfig(kv_cache_gb=0.05, embedding_cache_gb=0.02, cpu_threads=1)
    return Config(chosen, MediaConfig(min_pixels=1024), engine, EncoderConfig(encoder_url="http://127.0.0.1:1"))


def pictures(files: ModelFiles) -> list[EncodeItem]:
    found = []
    for seed, (width, height) in enumerate(((96, 64), (64, 128), (200, 40))):
        item: MediaItem = item_of(load_image(encoded(picture(width, height, seed), "PNG"), MediaConfig()), files.processor)
        found.append(EncodeItem(b"", np.empty(0, np.int64), item.without_bytes(), decode_image(item.ref)[None]))
    return found


@pytest.mark.parametrize("family", (*FAMILIES, *IN_VIEWS))
def test_embeddings_are_those_of_the_whole_model(
    tiny_checkpoints: dict[str, Path], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red when a row differs, when a tensor of the language model is read or has memory, or when the two have other names."""
    config = config_of(tiny_checkpoints[family])
    files = read_model_files(config.model, config.media)
    worker, facts = load_worker(config, files)
    read: list[str] = []
    really = Checkpoint.read
    monkeypatch.setattr(Checkpoint, "read", lambda self, name, box=None: read.append(name) or really(self, name, box))
    tower = load_tower(config, files)
    try:
        items = pictures(files)
        whole = worker.encodes.embed_together(items)
        alone = tower.embed(items)
        for expected, rows in zip(whole, alone, strict=True):
            assert expected is not None and rows is not None
            assert rows.tobytes() == expected.cpu().flatten().view(torch.uint8).numpy().tobytes()
        one = tower.embed(items[1:2])[0]
        assert one is not None and len(one) == alone[1].nbytes  # type: ignore[union-attr]
        assert read and not [name for name in read if name.startswith(("text.", "lm_head"))]
        model = tower.encodes._model
        assert all(parameter.is_meta for parameter in model.text.parameters())
        assert tower.weights_bytes < facts.weights_bytes
        assert tower.digest == facts.tower_digest != ""
    finally:
        worker.close()
        tower.close()


def digest_of(config: Config) -> tuple[str, str]:
    tower: TowerWorker = load_tower(config, files := read_model_files(config.model, config.media))
    tower.close()
    return tower.digest, identity_of(config, files, tower.digest, tower.dtype, "", ()).processor


def test_names_say_what_embeddings_follow_from(tiny_checkpoints: dict[str, Path], tmp_path: Path) -> None:
    """Red when two towers, or two ways of cutting a picture, have one name."""
    folder = tiny_checkpoints["qwen3-vl"]
    config = config_of(folder)
    tower, processor = digest_of(config)
    assert digest_of(config) == (tower, processor)
    seeds = [digest_of(config_of(folder, load_format="dummy", seed=seed))[0] for seed in (1, 1, 2)]
    assert seeds[0] == seeds[1] != seeds[2] and tower not in seeds
    dummy = config_of(folder, load_format="dummy", seed=1)
    worker, facts = load_worker(dummy, read_model_files(dummy.model, dummy.media))
    worker.close()
    assert facts.tower_digest == seeds[0], "a dummy tower is another one where it is alone"
    assert digest_of(replace(config, media=MediaConfig(min_pixels=4096)))[1] != processor
    assert digest_of(replace(config, engine=replace(config.engine, compact_patches=False)))[1] != processor
    assert digest_of(config_of(tiny_checkpoints["qwen2.5-vl"]))[1] != processor
