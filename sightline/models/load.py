"""From a checkpoint folder to a model on a device, or a full-size model of random weights."""

import logging
import math
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import torch

from sightline.errors import CheckpointError
from sightline.models.checkpoint import Checkpoint, open_checkpoint
from sightline.models.fp8 import Fp8Weight
from sightline.models.model import VisionLanguageModel
from sightline.models.quantise import Quantiser
from sightline.models.read_ahead import read_ahead
from sightline.models.registry import family_named
from sightline.models.sharding import ModelShard
from sightline.models.stored_fp8 import StoredFp8, as_parameter
from sightline.models.tower_digest import tower_digest
from sightline.models.weight_table import WeightTable
from sightline.models.weights.evaluate import evaluate
from sightline.models.weights.expressions import Cast, Weight
from sightline.ops.kernels import register_kernels
from sightline.spec import ModelSpec

log = logging.getLogger("sightline.engine")

# A layer's experts can be gigabytes, and while one is put in order on the device it is there twice.
_READ_AHEAD_BYTES = 8 * 1024**3
_TIED_HEAD = "lm_head.weight"
_EMBEDDING = "text.embed_tokens.weight"
TOWER = "vision."  # how names of the tower's parameters begin


def empty_model(spec: ModelSpec, shard: ModelShard | None = None) -> VisionLanguageModel:
    """The model, or what a rank has of it, on the meta device: shapes and no memory."""
    register_kernels()
    family = family_named(spec.family)
    own, vocabulary = (spec, spec.text.vocab_size) if shard is None else (shard.spec, shard.vocabulary_size)
    with torch.device("meta"):
        return VisionLanguageModel(own, family.tower(own), family.modules(), vocabulary)


def load_model(
    spec: ModelSpec,
    folder: Path,
    device: torch.device,
    dtype: torch.dtype,
    max_position: int,
    progress: Callable[[int, int], None] | None = None,
    quantiser: Quantiser | None = None,
    shard: ModelShard | None = None,
    tower_only: bool = False,
    name_tower: bool = False,
) -> VisionLanguageModel:
    """Reads every parameter from the folder's safetensors and refuses missing, left-over and wrongly shaped tensors.

    With `shard`, only a rank's part of each parameter is read and kept; `spec` is the whole model's. With `tower_only` the
    language model stays on the meta device: it has shapes and no memory, and none of its tensors is read. `name_tower`:
    model.tower_digest is wanted.
    """
    table = family_named(spec.family).weight_table(spec)
    quantiser = quantiser or Quantiser(stored=spec.fp8)
    quantiser.check_device(device)
    model = empty_model(spec, shard)
    with open_checkpoint(folder) as checkpoint:
        quantised = StoredFp8(checkpoint, table, spec.fp8)
        _check_names(checkpoint, table, tied=spec.text.tie_word_embeddings, scales=set(quantised.scales.values()))
        parameters = dict(model.named_parameters())
        assert parameters.keys() == table.keys(), parameters.keys() ^ table.keys()
        if tower_only:
            parameters = {name: meta for name, meta in parameters.items() if name.startswith(TOWER)}
        weights = {name: _share_of(name, meta, table[name], shard) for name, meta in parameters.items()}

        def read(name: str) -> torch.Tensor | Fp8Weight:
            # A transposed view goes to the device as it lies in the file and is put in order there.
            return as_parameter(evaluate(weights[name], quantised.read)).to(device).contiguous()

        def size(name: str) -> int:
            return math.prod(weights[name].shape) * dtype.itemsize

        for done, (name, value) in enumerate(read_ahead(read, weights, size=size, most=_READ_AHEAD_BYTES)):
            shape = value.values.shape if isinstance(value, Fp8Weight) else value.shape
            assert shape == weights[name].shape, (name, shape)
            quantiser.place(model, name, value, device, _fixed_dtype(weights[name], dtype))
            if progress is not None:
                progress(done + 1, len(weights))
    return _finish(model, max_position, quantiser, tower_only, name_tower)


def dummy_model(
    spec: ModelSpec,
    device: torch.device,
    dtype: torch.dtype,
    max_position: int,
    seed: int = 0,
    quantiser: Quantiser | None = None,
    shard: ModelShard | None = None,
    tower_only: bool = False,
    name_tower: bool = False,
) -> VisionLanguageModel:
    """Random weights made straight on the device. Norm weights and layer scales near 1, the rest small, for finite activations.

    With `shard`, what all ranks have whole is equal on all of them."""
    quantiser = quantiser or Quantiser(stored=spec.fp8)
    quantiser.check_device(device)
    table = family_named(spec.family).weight_table(spec)
    model = empty_model(spec, shard)
    generator = torch.Generator(device).manual_seed(seed)
    for name, meta in list(model.named_parameters()):  # the tower's come first, so they are the same where it is alone
        if tower_only and not name.startswith(TOWER):
            continue
        if shard is not None:  # else what a rank draws would depend on how large its parts before were
            generator.manual_seed(seed + crc32(name.encode()) + (shard.rank << 40 if name in shard.shares else 0))
        own_dtype = _fixed_dtype(table[name], dtype)
        value = torch.empty(meta.shape, dtype=own_dtype, device=device).normal_(0.0, 0.02, generator=generator)
        if ("norm" in name and name.endswith("weight")) or name.endswith((".scale1", ".scale2")):
            value += 1.0
        quantiser.place(model, name, quantiser.as_stored(name, value), device, own_dtype)
    return _finish(model, max_position, quantiser, tower_only, name_tower)


def _finish(
    model: VisionLanguageModel, max_position: int, quantiser: Quantiser, tower_only: bool, name_tower: bool
) -> VisionLanguageModel:
    model.requires_grad_(False)
    model.eval()
    if name_tower:
        model.tower_digest = tower_digest(model.vision)
    if tower_only:
        model.vision.prepare()
    else:
        model.prepare(max_position)
    quantiser.finish(model)
    return model


def _share_of(name: str, meta: torch.Tensor, weight: Weight, shard: ModelShard | None) -> Weight:
    share = shard.shares.get(name) if shard is not None else None
    part = weight if share is None else share.of(weight)
    assert part.shape == meta.shape, (name, part.shape, meta.shape)  # both come from the same spec
    return part


def _fixed_dtype(weight: Weight, otherwise: torch.dtype) -> torch.dtype:
    return getattr(torch, weight.dtype) if isinstance(weight, Cast) else otherwise


def _check_names(checkpoint: Checkpoint, table: WeightTable, tied: bool, scales: set[str]) -> None:
    """Every tensor of the table is there, in its shape, and nothing else is but ignored ones and `scales`, checked before."""
    wanted = table.stored()
    present = checkpoint.names() - scales
    if tied and _TIED_HEAD in present:
        # Some tied checkpoints store the head as well. It must then be the embedding itself.
        if not torch.equal(checkpoint.read(_TIED_HEAD), checkpoint.read(_EMBEDDING)):
            raise CheckpointError(f"config.json ties '{_TIED_HEAD}' to the embedding, but the checkpoint has another one.")
        present.discard(_TIED_HEAD)
    missing, extra = sorted(set(wanted) - present), sorted(present - set(wanted))
    unknown = [name for name in extra if not table.is_ignored(name)]
    if missing:
        raise CheckpointError(f"The checkpoint lacks {_some(missing)}.")
    if unknown:
        raise CheckpointError(f"The checkpoint has {_some([checkpoint.stored_name(n) for n in unknown])}, which nothing uses.")
    if extra:
        log.info("%d tensors of the checkpoint are known and not loaded (%s).", len(extra), ", ".join(table.ignored))
    for name, stored in wanted.items():
        if checkpoint.shape(name) != stored.shape:
            found = list(checkpoint.shape(name))
            expected = list(stored.shape)
            raise CheckpointError(f"Tensor '{checkpoint.stored_name(name)}' has the shape {found}, expected {expected}.")


def _some(names: list[str], most: int = 3) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:most])
    noun = "tensor" if len(names) == 1 else f"{len(names)} tensors:"
    return f"{noun} {shown}" + (", …" if len(names) > most else "")
