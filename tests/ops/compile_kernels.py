"""A program: compiles every Triton kernel for an H200 at the examples of its op, on a machine that need not have a GPU.

Twins are called with CPU tensors; in place of a launch the kernel is compiled with the types of its arguments. Prints the names
of ops whose kernels were compiled. The interpreter is laxer than the compiler: types, shapes of loops, registers.
"""

import dataclasses
import importlib
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
from sightline.ops.twins import register_twins

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


def compile_few_rows() -> None:
    """The tilings of the table at their shapes."""
    from sightline.ops.triton import few_rows_table as table
    from sightline.ops.triton.few_rows import run_linear, run_linear_silu_mul

    for (rows, width, size), tiling in table.LINEAR.items():
        run_linear(torch.empty(rows, size).bfloat16(), torch.empty(width, size, dtype=torch.bfloat16), None, tiling)
    for (rows, width, size), tiling in table.LINEAR_SILU_MUL.items():
        weight = torch.empty(2 * width, size, dtype=torch.bfloat16)
        run_linear_silu_mul(torch.empty(rows, size).bfloat16(), weight, dataclasses.replace(tiling, split=1))


def main() -> None:
    assert os.environ.get("TRITON_INTERPRET") != "1"
    sightline.ops.triton.INTERPRETED = True  # twins take CPU tensors
    JITFunction.run = compile_only
    for module in pkgutil.iter_modules(sightline.ops.__path__):
        if not module.ispkg:
            importlib.import_module(f"sightline.ops.{module.name}")
    from sightline.ops.triton import early_start

    early_start.starts_early = lambda device: True
    register_twins()
    compile_few_rows()
    wanted = sys.argv[1:] or sorted(OPS)
    for name in wanted:
        op = OPS[name]
        dtype = torch.bfloat16 if torch.bfloat16 in op.tolerances else torch.float32
        for twin in op.twins:
            before = len(done)
            for example in op.examples(ExampleMaker(torch.device("cpu"), dtype)):
                if twin.name.startswith("triton") and twin.when(**example):
                    twin.run(**example)
            if len(done) > before:
                print(name, twin.name, len(done) - before, flush=True)


if __name__ == "__main__":
    main()
