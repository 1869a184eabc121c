"""config.json's quantization_config, for the forms in which fp8 checkpoints of these families are published.

Which matrices are quantised is told by the tensors' own dtype, so the lists of modules left alone are only checked to be lists.
"""

from typing import Any, Literal

from sightline.errors import ConfigError
from sightline.models.fields import Fields
from sightline.spec import Fp8Spec

_BLOCKS = [128, 128]


def read_quantization(config: Fields) -> Fp8Spec:
    method = config.take("quant_method", "unnamed")
    if method == "fp8":
        return _read_fine_grained(config)
    if method == "compressed-tensors":
        return _read_compressed_tensors(config)
    raise ConfigError(f"{config.name} has the method {method!r}, but only 'fp8' and 'compressed-tensors' are supported.")


def _read_fine_grained(config: Fields) -> Fp8Spec:
    """Blocks of weights, as Qwen publishes them."""
    config.must_be("fmt", "e4m3")
    config.must_be("activation_scheme", "dynamic")
    config.must_be("scale_fmt", "float")
    _one_of(config, "weight_block_size", _BLOCKS)
    for field in ("modules_to_not_convert", "ignored_layers"):
        _names(config, field)
    config.done()
    return Fp8Spec("block", "_scale_inv", quantised_inputs=True)


def _read_compressed_tensors(config: Fields) -> Fp8Spec:
    """A scale per output channel, per matrix or per block, as llm-compressor writes them."""
    config.must_be("format", "float-quantized")
    config.must_be("quantization_status", "compressed")
    config.must_be("transform_config", {})
    sparsity = config.section("sparsity_config", {})
    sparsity.must_be("format", "dense")  # nothing left out: the other fields then say nothing
    config.ignore("version", "global_compression_ratio")
    _names(config, "ignore")
    groups = config.section("config_groups")
    found = {_read_group(groups.section(name)) for name in config.take("config_groups")}
    config.done()
    if len(found) != 1:
        raise ConfigError(f"{groups.name} has {len(found)} different kinds of groups, but must have one.")
    return found.pop()


def _read_group(group: Fields) -> Fp8Spec:
    group.must_be("format", "float-quantized")
    _names(group, "targets")
    weights = group.section("weights")
    strategy: Literal["tensor", "channel", "block"] = _one_of(weights, "strategy", "channel", "tensor", "block")
    if strategy == "block":
        _one_of(weights, "block_structure", _BLOCKS)
    _read_numbers(weights, dynamic=False)
    if "input_activations" in group:
        inputs = group.section("input_activations")
        _one_of(inputs, "strategy", "group" if strategy == "block" else "token")
        if strategy == "block":
            _one_of(inputs, "group_size", _BLOCKS[1])
        _read_numbers(inputs, dynamic=True)
    group.done()
    return Fp8Spec("block" if strategy == "block" else "channel", "_scale", "input_activations" in group)


def _read_numbers(fields: Fields, dynamic: bool) -> None:
    """What weights and activations say alike: 8-bit floats around zero."""
    _one_of(fields, "num_bits", 8)
    _one_of(fields, "type", "float")
    fields.must_be("symmetric", True)
    fields.must_be("dynamic", dynamic)
    if dynamic:
        fields.take("dynamic")  # without it the scales would be stored ones
    fields.ignore("observer", "observer_kwargs")
    fields.done()


def _one_of(fields: Fields, field: str, *allowed: Any) -> Any:
    """The field, which has to be there, with one of these values."""
    value = fields.take(field)
    fields.must_be(field, *allowed)
    return value


def _names(fields: Fields, field: str) -> None:
    value = fields.take(field, [])
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ConfigError(f"{fields.name}: '{field}' is {value!r}, but must be a list of names.")
