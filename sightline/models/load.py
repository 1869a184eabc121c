"""From a checkpoint folder to a model on a device, or a full-size model of random weights."""

from collections.abc import Callable
from pathlib import Path

import torch

from sightline.errors import CheckpointError
from sightline.models.checkpoint import Checkpoint, open_checkpoint
from sightline.models.families import FAMILIES
from sightline.models.fp8 import Fp8Weight
from sightline.models.model import VisionLanguageModel
from sightline.models.quantise import Quantiser
from sightline.models.read_ahead import read_ahead
from sightline.models.stored_fp8 import StoredFp8
from sightline.models.weight_table import Source, WeightTable
from sightline.ops.twins import register_twins
from sightline.spec import ModelSpec

_TIED_HEAD = "lm_head.weight"
_EMBEDDING = "text.embed_tokens.weight"


def empty_model(spec: ModelSpec) -> VisionLanguageModel:
    """The model on the meta device: shapes and no memory."""
    register_twins()
    with torch.device("meta"):
        return VisionLanguageModel(spec)


def load_model(
    spec: ModelSpec,
    folder: Path,
    device: torch.device,
    dtype: torch.dtype,
    max_position: int,
    progress: Callable[[int, int], None] | None = None,
    quantiser: Quantiser | None = None,
) -> VisionLanguageModel:
    """Reads every parameter from the folder's safetensors and refuses missing, left-over and wrongly shaped tensors."""
    table = FAMILIES[spec.family].weight_table(spec)
    quantiser = quantiser or Quantiser(stored=spec.fp8)
    quantiser.check_device(device)
    model = empty_model(spec)
    with open_checkpoint(folder) as checkpoint:
        quantised = StoredFp8(checkpoint, table, spec.fp8)
        _check_names(checkpoint, table, tied=spec.text.tie_word_embeddings, scales=set(quantised.scales.values()))
        parameters = dict(model.named_parameters())

        def read(name: str) -> torch.Tensor | Fp8Weight:
            return _read_parameter(checkpoint, table[name], quantised).to(device)

        for done, (name, value) in enumerate(read_ahead(read, parameters)):
            meta = parameters[name]
            shape = value.values.shape if isinstance(value, Fp8Weight) else value.shape
            assert shape == meta.shape, (name, shape, meta.shape)  # the table's shapes come from the same spec
            quantiser.place(model, name, value, device, dtype)
            if progress is not None:
                progress(done + 1, len(parameters))
    return _finish(model, max_position, quantiser)


def dummy_model(
    spec: ModelSpec,
    device: torch.device,
    dtype: torch.dtype,
    max_position: int,
    seed: int = 0,
    quantiser: Quantiser | None = None,
) -> VisionLanguageModel:
    """Random weights made straight on the device. Norm weights near 1, the rest small enough for finite activations."""
    quantiser = quantiser or Quantiser(stored=spec.fp8)
    quantiser.check_device(device)
    model = empty_model(spec)
    generator = torch.Generator(device).manual_seed(seed)
    for name, meta in list(model.named_parameters()):
        value = torch.empty(meta.shape, dtype=dtype, device=device).normal_(0.0, 0.02, generator=generator)
        if "norm" in name and name.endswith("weight"):
            value += 1.0
        quantiser.place(model, name, quantiser.as_stored(name, value), device, dtype)
    return _finish(model, max_position, quantiser)


def _finish(model: VisionLanguageModel, max_position: int, quantiser: Quantiser) -> VisionLanguageModel:
    model.requires_grad_(False)
    model.eval()
    model.prepare(max_position)
    quantiser.finish(model)
    return model


def _check_names(checkpoint: Checkpoint, table: WeightTable, tied: bool, scales: set[str]) -> None:
    """Every tensor of the table is there, in its shape, and nothing else is but `scales`, which were checked before."""
    wanted = {name: shape for source in table.values() for name, shape in source.tensors}
    present = checkpoint.names() - scales
    if tied and _TIED_HEAD in present:
        # Some tied checkpoints store the head as well. It must then be the embedding itself.
        if not torch.equal(checkpoint.tensor(_TIED_HEAD), checkpoint.tensor(_EMBEDDING)):
            raise CheckpointError(f"config.json ties '{_TIED_HEAD}' to the embedding, but the checkpoint has another one.")
        present.discard(_TIED_HEAD)
    missing, extra = sorted(set(wanted) - present), sorted(present - set(wanted))
    if missing:
        raise CheckpointError(f"The checkpoint lacks {_some(missing)}.")
    if extra:
        raise CheckpointError(f"The checkpoint has {_some([checkpoint.stored_name(n) for n in extra])}, which nothing uses.")
    for name, shape in wanted.items():
        if checkpoint.shape(name) != shape:
            found = list(checkpoint.shape(name))
            raise CheckpointError(f"Tensor '{checkpoint.stored_name(name)}' has the shape {found}, expected {list(shape)}.")


def _some(names: list[str], most: int = 3) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:most])
    noun = "tensor" if len(names) == 1 else f"{len(names)} tensors:"
    return f"{noun} {shown}" + (", …" if len(names) > most else "")


def _read_parameter(checkpoint: Checkpoint, source: Source, quantised: StoredFp8) -> torch.Tensor | Fp8Weight:
    if any(stored in quantised.scales for stored, _ in source.tensors):
        return quantised.read(source)
    parts = [checkpoint.tensor(stored) for stored, _ in source.tensors]
    if source.convert is not None:
        parts = [source.convert(part) for part in parts]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
