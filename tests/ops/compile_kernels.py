"""A program: compiles every Triton kernel for an H200 at the examples of its op, on a machine that need not have a GPU.

Kernels are called with CPU tensors; in place of a launch a kernel is compiled with the types of its arguments. Prints the
names of ops whose kernels were compiled. The interpreter is laxer than the compiler: types, shapes of loops, registers.
"""

import importlib
import itertools
import os
import pkgutil
import sys
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

import sightline.ops
import sightline.ops.triton
from sightline.ops.dispatch import OPS, ExampleMaker
from sightline.ops.kernels import register_kernels

TARGET = GPUTarget("cuda", 90, 32)
SHARED = 227 * 1024  # bytes that a program can have
TYPES = {
    torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float8_e4m3fn: "fp8e4nv",
    torch.int64: "i64", torch.int32: "i32", torch.uint8: "u8", torch.int8: "i8", torch.bool: "i1",
}  # fmt: skip
done: set[str] = set()


def type_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "*" + TYPES[value.dtype]
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    assert isinstance(value, float), f"{value!r} as an argument of a kernel"
    return "fp32"


def specialised(self: JITFunction[Any], args: Any, kwargs: Any) -> tuple[Any, ...]:
    """What a launch would compile: integers that are 1 are constants, and those that 16 divides are known to be so."""
    options = {name: kwargs[name] for name in ("num_warps", "num_stages", "launch_pdl") if name in kwargs}
    values = self.signature.bind(*args, **{name: value for name, value in kwargs.items() if name not in options})
    values.apply_defaults()
    signature, constants, attributes = {}, {}, {}
    for place, (parameter, (name, value)) in enumerate(zip(self.params, values.arguments.items(), strict=True)):
        special = type(value) is int and not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or (special and value == 1):
            signature[name], constants[(place,)] = "constexpr", value
            continue
        signature[name] = type_of(value)
        if isinstance(value, torch.Tensor) or (special and value % 16 == 0):
            attributes[(place,)] = [["tt.divisibility", 16]]
    return signature, constants, attributes, options


def compile_only(self: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
    signature, constants, attributes, options = specialised(self, args, kwargs)
    key = f"{self.__name__} {signature} {constants} {attributes} {options}"
    if key not in done:
        kernel = triton.compile(ASTSource(self, signature, constants, attributes), target=TARGET, options=options)
        assert kernel.metadata.shared <= SHARED, f"{key} needs {kernel.metadata.shared} bytes of shared memory"
        done.add(key)


def compile_small_m() -> None:
    """Every tiling that the rule or the data choose for weights of any size."""
    from sightline.ops.linear import SPLIT_SUMS_BYTES
    from sightline.ops.triton.small_m import run_linear, run_linear_silu_mul
    from sightline.ops.triton.small_m_tilings import ROW_BUCKETS, gated_tiling, linear_tiling
    from sightline.ops.workspace import Workspace

    workspace = Workspace("split sums", SPLIT_SUMS_BYTES, torch.device("cpu"))
    widths, sizes = (1536, 2048, 3584, 4096, 8192, 10240, 17408, 25600, 65536), (2048, 4096, 12288)
    for rows, width, size in itertools.product(ROW_BUCKETS, widths, sizes):
        x = torch.empty(rows, size, device="meta", dtype=torch.bfloat16)
        weight = torch.empty(width, size, device="meta", dtype=torch.bfloat16)
        tiling = linear_tiling(rows, width, size)
        if tiling is not None:
            run_linear(x, weight, None, tiling, workspace)
        tiling = gated_tiling(rows, width // 2, size)
        if tiling is not None:
            run_linear_silu_mul(x, weight, tiling)


def compile_experts() -> None:
    """Expert layers of published models, from one token to a long prompt, on tensors without memory."""
    from sightline.ops.experts import needs_lists
    from sightline.ops.triton import experts as kernels

    def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    # experts, chosen, hidden size, width, numbers per scale of a column and of a row (0: bfloat16)
    for count, chosen, hidden, inner, block in (
        (128, 8, 2048, 768, 0), (129, 9, 4096, 1408, 1), (128, 8, 2048, 768, 128), (513, 11, 4096, 1024, 0),
    ):  # fmt: skip
        for tokens in (1, 32, 512, 2048, 8192):
            chosen_experts = empty(tokens, chosen, dtype=torch.int32)
            lists = kernels.group_pairs_triton(chosen_experts, count) if needs_lists(chosen_experts, count) else None
            for first, height, size in ((True, 2 * inner, hidden), (False, hidden, inner)):
                kind = torch.float8_e4m3fn if block else torch.bfloat16
                grid = (count, height) if block == 1 else (count, -(-height // 128), -(-size // 128))
                kernels._run(
                    empty(tokens if first else tokens * chosen, size), chosen_experts, lists,
                    empty(count, height, size, dtype=kind), empty(*grid, dtype=torch.float32) if block else None,
                    None if first else empty(tokens, chosen, dtype=torch.float32),
                )  # fmt: skip


def main() -> None:
    assert os.environ.get("TRITON_INTERPRET") != "1"
    sightline.ops.triton.INTERPRETED = True  # kernels take CPU tensors
    JITFunction.run = compile_only
    for module in pkgutil.iter_modules(sightline.ops.__path__):
        if not module.ispkg:
            importlib.import_module(f"sightline.ops.{module.name}")
    from sightline.ops.triton import dependent_launch

    dependent_launch.has_dependent_launch = lambda device: True
    register_kernels()
    compile_small_m()
    compile_experts()
    wanted = sys.argv[1:] or sorted(OPS)
    for name in wanted:
        op = OPS[name]
        dtype = torch.bfloat16 if torch.bfloat16 in op.tolerances else torch.float32
        for kernel in op.kernels:
            before = len(done)
            for example in op.examples(ExampleMaker(torch.device("cpu"), dtype)):
                if kernel.name.startswith("triton") and kernel.when(**example):
                    kernel.run(**example)
            if len(done) > before:
                print(name, kernel.name, len(done) - before, flush=True)


if __name__ == "__main__":
    main()
