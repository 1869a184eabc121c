"""Every op of the registry: it has examples and tolerances, its definition is deterministic, and each kernel agrees with it.

A new op without examples, a definition that depends on hidden state, or a kernel that is off turns this red. Kernels that
need a GPU are compared there (-m gpu); on a CPU only kernels whose predicate holds for CPU tensors are.
"""

import copy
import dataclasses
import importlib
import inspect
import os
import pkgutil
from typing import Any

import pytest
import torch

import sightline.ops
from ops.interpreter import mend_the_interpreter
from sightline.ops.dispatch import OPS, ExampleMaker, Op, Tolerance, definitions_only
from sightline.ops.kernels import register_kernels

for module in pkgutil.iter_modules(sightline.ops.__path__):
    if not module.ispkg:
        importlib.import_module(f"sightline.ops.{module.name}")
register_kernels()
mend_the_interpreter()

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))


def cases() -> list[Any]:
    return [
        pytest.param(op, dtype, id=f"{name}-{str(dtype).removeprefix('torch.')}")
        for name, op in sorted(OPS.items())
        for dtype in op.tolerances
    ]


def tensors(value: Any) -> list[torch.Tensor]:
    """All tensors in a result or in arguments, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if dataclasses.is_dataclass(value):
        value = vars(value)
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for part in value for tensor in tensors(part)] if isinstance(value, list | tuple) else []


def comparable(value: Any) -> list[torch.Tensor]:
    """The tensors, 8-bit floats as float32, since torch cannot compare them."""
    return [tensor.float() if tensor.dtype == torch.float8_e4m3fn else tensor for tensor in tensors(value)]


def outcome(function: Any, arguments: dict[str, Any]) -> list[torch.Tensor]:
    """What a call gives: its result, and its arguments afterwards, since some ops write in place."""
    arguments = {name: copy.deepcopy(value) for name, value in arguments.items()}
    result = function(**arguments)
    return comparable(result) + comparable(arguments)


def assert_within(found: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance) -> None:
    assert found.shape == expected.shape and found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, atol=tolerance.absolute, rtol=tolerance.relative)


def is_too_long_to_interpret(op: Op[..., Any], arguments: dict[str, Any]) -> bool:
    """The prompt that is long enough to gather its keys: half a minute of the interpreter, which gathers nothing."""
    return os.environ.get("TRITON_INTERPRET") == "1" and op.name == "paged_attention" and arguments["q"].numel() > 2**19


def test_the_registry_is_filled() -> None:
    expected = {
        "rms_norm", "add_rms_norm", "layer_norm", "gelu", "linear_gelu_tanh", "silu_mul", "rotary", "vision_rotary",
        "rotate_and_store", "segment_attention", "paged_attention", "patch_positions", "merge_embeddings", "add_rms_norm_rows",
        "gather_pages", "best_token", "draw_by_id", "draw_by_score", "attend_new_tokens", "rotated_projection",
        "add_position_grid", "patchify", "resize_bicubic", "quantise_rows", "fp8_linear", "fp8_block_linear",
    }  # fmt: skip
    assert expected <= set(OPS)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("op", "dtype"), cases())
def test_definition_and_kernels(op: Op[..., Any], dtype: torch.dtype, device: str) -> None:
    assert torch.float32 in op.tolerances
    examples = list(op.examples(ExampleMaker(torch.device(device), dtype)))
    assert examples, f"{op.name} has no examples"
    used: set[str] = set()
    for arguments in examples:
        with definitions_only():
            expected = outcome(op, arguments)
        sound = [(x.isfinite() | x.isneginf()).all() for x in expected if x.is_floating_point()]  # -inf: a forbidden token
        assert expected and all(sound)
        for found, again in zip(outcome(op.definition, arguments), expected, strict=True):
            assert torch.equal(found, again)
        placed = inspect.signature(op.definition).bind(**arguments).args  # models call ops either way
        for kernel in op.kernels:
            assert kernel.when(*placed) == kernel.when(**arguments)
            if kernel.when(**arguments) and not is_too_long_to_interpret(op, arguments):
                used.add(kernel.name)
                for found, reference in zip(outcome(kernel.run, arguments), expected, strict=True):
                    assert_within(found, reference, op.tolerances[dtype])
    if os.environ.get("TRITON_INTERPRET") == "1":
        assert {kernel.name for kernel in op.kernels if kernel.name.startswith("triton")} <= used, (
            "a kernel that no example reaches"
        )
    if device == "cuda":
        assert used == {kernel.name for kernel in op.kernels} or dtype == torch.float32, "a kernel that no example reaches"


@pytest.mark.gpu
@pytest.mark.parametrize(("op", "dtype"), cases())
def test_definition_on_the_gpu_equals_the_cpu(op: Op[..., Any], dtype: torch.dtype) -> None:
    """The definition means the same on both devices; examples are drawn on the CPU from one seed."""
    tolerance = op.tolerances[dtype]
    loose = Tolerance(max(tolerance.absolute, 0.0), tolerance.relative)
    cpu = op.examples(ExampleMaker(torch.device("cpu"), dtype))
    gpu = op.examples(ExampleMaker(torch.device("cuda"), dtype))
    for on_cpu, on_gpu in zip(cpu, gpu, strict=True):
        for expected, found in zip(outcome(op.definition, on_cpu), outcome(op.definition, on_gpu), strict=True):
            if not expected.is_floating_point() or expected.dtype == dtype:
                assert_within(found.cpu(), expected, loose)


@pytest.mark.gpu
@pytest.mark.parametrize(("op", "dtype"), cases())
def test_what_is_recorded_follows_its_tensors(op: Op[..., Any], dtype: torch.dtype) -> None:
    """Red when a kernel that says it may be captured waits for the device, or takes something from the host that varies."""
    device = torch.device("cuda")
    examples = zip(op.examples(ExampleMaker(device, dtype)), op.examples(ExampleMaker(device, dtype, seed=1)), strict=True)
    for first, second in examples:
        for kernel in op.kernels:
            if not (kernel.graph_safe and kernel.when(**first)):
                continue
            expected = outcome(kernel.run, second)  # also compiles what must not be compiled while capture
            inputs = {name: copy.deepcopy(value) for name, value in first.items()}
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                result = kernel.run(**inputs)
            for static, new in zip(tensors(inputs), tensors(second), strict=True):
                static.copy_(new)
            graph.replay()
            for found, reference in zip(comparable(result) + comparable(inputs), expected, strict=True):
                assert_within(found, reference, op.tolerances[dtype])
