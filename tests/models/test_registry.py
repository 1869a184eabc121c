"""Families: where they come from, and which of them a checkpoint is of."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sightline.config import Config, MediaConfig, ModelConfig
from sightline.errors import ConfigError
from sightline.llm import LLM
from sightline.models.create import create_checkpoint
from sightline.models.families.qwen3_vl import FAMILY
from sightline.models.files import read_model_files
from sightline.models.registry import Registry, add_family_modules, family_named, read_model_spec, registry
from sightline.types import SamplingParams

# A stranger's family: Qwen3-VL by another name.
STRANGER = """
import dataclasses
from sightline.models.families.qwen3_vl import FAMILY as QWEN3

def read_spec(config):
    return dataclasses.replace(QWEN3.read_spec(config), family="stranger")

FAMILY = dataclasses.replace(QWEN3, name="stranger", model_type="stranger_vl", read_spec=read_spec)
"""


@pytest.fixture
def fresh() -> Iterator[None]:
    """A registry that no other test sees."""
    registry.cache_clear()
    yield
    registry.cache_clear()


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    file = tmp_path / "stranger.py"
    file.write_text(STRANGER)
    return file


def refused(*modules: str | Path) -> str:
    with pytest.raises(ConfigError) as caught:
        add_family_modules(map(str, modules))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_modules_that_are_no_families(fresh: None, tmp_path: Path) -> None:
    """Red if a module that cannot be imported, or has nothing to offer, is passed over or shows a traceback."""
    (tmp_path / "broken.py").write_text("import no_such_thing")
    (tmp_path / "empty.py").write_text("FAMILY = 'qwen'")
    assert refused("no.such.module").startswith("family_module names 'no.such.module', which cannot be imported: ")
    assert "broken.py', which cannot be imported: ModuleNotFoundError: No module named 'no_such_thing'" in refused(
        tmp_path / "broken.py"
    )
    assert "gone.py', which cannot be imported: FileNotFoundError" in refused(tmp_path / "gone.py")
    assert "empty.py', which has no FAMILY that is a" in refused(tmp_path / "empty.py")


def test_two_families_of_one_name_or_type(fresh: None, tmp_path: Path) -> None:
    """Red if the later of two families silently wins, or the error does not say where both are."""
    same_type, same_name = tmp_path / "same_type.py", tmp_path / "same_name.py"
    same_type.write_text(STRANGER.replace('"stranger_vl"', '"qwen3_vl"'))
    same_name.write_text(STRANGER.replace('name="stranger"', 'name="glm-4.1v"'))
    said = refused(same_type)
    assert said == (f"Two families are for model_type 'qwen3_vl': of sightline.models.families.qwen3_vl and of {same_type}.")
    assert refused(same_name) == (f"Two families are named 'glm-4.1v': of sightline.models.families.glm4v and of {same_name}.")


def test_a_module_may_be_named_again(fresh: None, stranger: Path) -> None:
    """Red if settings that are read twice in a process register a family twice."""
    add_family_modules([str(stranger)])
    add_family_modules([str(stranger)])
    assert family_named("stranger").model_type == "stranger_vl"


def test_folders_and_lists_of_families(fresh: None, tmp_path: Path) -> None:
    """Red if a folder cannot import its own files, or only the first family of a module counts."""
    folder = tmp_path / "pack"
    folder.mkdir()
    (folder / "one.py").write_text(STRANGER)
    (folder / "__init__.py").write_text(
        "import dataclasses\nfrom .one import FAMILY as ONE\n"
        "FAMILIES = [ONE, dataclasses.replace(ONE, name='other', model_type='other_vl')]\n"
    )
    add_family_modules([str(folder)])
    assert {"stranger", "other"} <= set(registry().families)


def test_entry_points(stranger: Path) -> None:
    """Red if a family of an installed package is not found, or only where its module is named as well."""
    info = stranger.parent / "strangers-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strangers\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[sightline.families]\nanything = stranger\n")
    code = "from sightline.models.registry import registry; print(*registry().families)"
    path = os.pathsep.join([str(stranger.parent), *filter(None, sys.path)])
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.stdout.split()[-1] == "stranger", done.stderr
    assert "qwen3-vl" in done.stdout


def test_another_process_knows_the_family_too(fresh: None, stranger: Path, tmp_path: Path) -> None:
    """Red if the setting does not reach a worker process, or the family's own processor is not what prompts are built with."""
    add_family_modules([str(stranger)])
    create_checkpoint(tmp_path / "strange", "stranger", "tiny", dtype=torch.float32, seed=3)
    create_checkpoint(tmp_path / "known", "qwen3-vl", "tiny", dtype=torch.float32, seed=3)
    settings = {"dtype": "float32", "device": "cpu", "kv_cache_gb": 0.05, "embedding_cache_gb": 0.02}
    chat = [{"role": "user", "content": "Hello"}]
    sampling = SamplingParams(temperature=0, max_tokens=8)
    with LLM(tmp_path / "known", **settings) as llm:
        expected = llm.chat(chat, sampling).token_ids
    registry.cache_clear()
    with LLM(tmp_path / "strange", family_module=(str(stranger),), worker_process=True, **settings) as llm:
        assert llm.spec.family == "stranger"
        assert llm.chat(chat, sampling).token_ids == expected


def test_a_model_is_named_by_what_it_was_asked_for(tiny_checkpoints: dict[str, Path]) -> None:
    """Red if messages about a model name its family or nothing."""
    folder = str(tiny_checkpoints["qwen3-vl"])
    builder = read_model_files(ModelConfig(model=folder), MediaConfig()).prompt_builder(Config().media)
    assert builder.model == folder


# --- families that share a model_type ---


@pytest.mark.parametrize(
    ("kind", "family"), [("Glm46VProcessor", "glm-4.6v-flash"), ("Glm4vProcessor", "glm-4.1v"), (None, "glm-4.1v")]
)
def test_the_processor_tells_glm_apart(
    kind: str | None, family: str, tiny_checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    """Red if one of them is read as the other, whichever file names the processor."""
    folder = tmp_path / "model"
    for file in ("preprocessor_config.json", "processor_config.json"):
        shutil.copytree(
            tiny_checkpoints["glm-4.6v-flash"], folder, ignore=shutil.ignore_patterns("*.safetensors", "*processor_*")
        )
        (folder / file).write_text(json.dumps({"processor_class": kind}))
        assert read_model_spec(folder).family == family
        shutil.rmtree(folder)


def test_an_unknown_processor_where_each_family_names_its_own(tmp_path: Path) -> None:
    """Red if a checkpoint of neither family is taken for one of them."""
    import dataclasses

    found = Registry()
    for kind in ("A", "B"):
        found.add(dataclasses.replace(FAMILY, name=kind, processor_class=kind), kind)
    (tmp_path / "preprocessor_config.json").write_text('{"processor_class": "C"}')
    with pytest.raises(ConfigError, match=r"has a processor_class 'C', but for model_type 'qwen3_vl' it must be A or B\.$"):
        found.find("qwen3_vl", tmp_path)
