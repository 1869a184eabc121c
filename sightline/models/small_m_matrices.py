"""Which small-M GEMMs a language model makes, from its description alone: each shape once, over all ranks that hold it.

Those of a tower are none of them: its rows are patches, of which there are hardly ever so few.
"""

from collections.abc import Iterator

from torch import nn

from sightline.models.experts import Router
from sightline.models.layers import GatedMLP
from sightline.models.linear import Linear, TiedHead
from sightline.models.load import empty_model
from sightline.models.quantise import Quantiser
from sightline.models.sharding import shard_model
from sightline.ops.triton.small_m_tilings import SMALL_WEIGHT, Form
from sightline.ops.tuning.small_m_search import Matrix
from sightline.spec import ModelSpec


def small_m_matrices(spec: ModelSpec, quantiser: Quantiser, ranks: int = 1) -> list[Matrix]:
    """Of weights that are too small to fill a chip none is chosen for."""
    found: dict[tuple[int, int, bool, Form], Matrix] = {}
    for rank in range(ranks):
        shard = None if ranks == 1 else shard_model(spec, rank, ranks)
        for matrix in _matrices(empty_model(spec, shard).text, quantiser):
            if matrix.shape[0] * matrix.size > SMALL_WEIGHT:
                found.setdefault((matrix.width, matrix.size, matrix.gated, matrix.form), matrix)
    return list(found.values())


def _matrices(decoder: nn.Module, quantiser: Quantiser) -> Iterator[Matrix]:
    gated = {id(module.gate_up) for module in decoder.modules() if isinstance(module, GatedMLP)}
    for name, module in decoder.named_modules():
        leaf = name.rpartition(".")[2]
        if isinstance(module, Linear):
            both, (out, size) = id(module) in gated, module.weight.shape
            form = quantiser.form_of(f"text.{name}", module)
            yield Matrix(leaf, out // 2 if both else out, size, both, form)
        elif isinstance(module, TiedHead):
            yield Matrix(leaf, *module.table.weight.shape)
        elif isinstance(module, Router) and module.bias is None:  # with one its product is made in float32
            yield Matrix(leaf, *module.weight.shape)
