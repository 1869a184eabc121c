"""A program: the whole engine on a GPU that is not there, to see that the host's side of CUDA runs at all.

Tensors on `cuda` have a dtype, a shape and a device, and no numbers (torch's FakeTensor); a kernel of ours is called with them
and not launched; what is read back is zero. So nothing here says whether results are right. It finds what a machine without a
GPU cannot find otherwise: arguments that do not fit, tensors on the wrong device, workspaces that are too small, names that are
gone, on the paths that only CUDA takes (memory plan, profile runs, graphs, page-locked copies, streams, the choice of kernels).

    python -m tests.worker.dry_cuda FAMILY SIZE QUANTIZATION     none, fp8, or fp8-kv: keys and values as well
"""

import contextlib
import functools
import json
import sys
import tempfile
import types
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from triton.runtime.jit import JITFunction

GIB = 2**30
MODE = FakeTensorMode(allow_non_fake_inputs=True)
aten = torch.ops.aten
launches: Counter[str] = Counter()


def is_cuda(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


# ---- Tensors: made on `cuda` they are fake; the C++ side of some methods asks for a CUDA driver, so those go to aten at once


def make_factories_fake() -> None:
    for name in ("empty", "zeros", "ones", "full", "arange", "empty_strided", "eye", "linspace"):
        setattr(torch, name, _factory(getattr(torch, name)))
    plain = torch.tensor

    def tensor(data: Any, dtype: Any = None, device: Any = None, **others: Any) -> torch.Tensor:
        made = plain(data, dtype=dtype, **others)
        return made.to(device) if is_cuda(device) else made

    torch.tensor = tensor


def _factory(plain: Any) -> Any:
    def make(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        with MODE if is_cuda(kwargs.get("device")) else contextlib.nullcontext():
            made: torch.Tensor = plain(*args, **kwargs)
            return made

    return make


def _to(plain: Any) -> Any:
    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        device, dtype = kwargs.get("device", self.device), kwargs.get("dtype", self.dtype)
        for one in args:
            device = one if isinstance(one, torch.device | str) else device
            dtype = one if isinstance(one, torch.dtype) else dtype
        fake = isinstance(self, FakeTensor)
        if fake and is_cuda(device):
            found: torch.Tensor = self if dtype == self.dtype else aten._to_copy(self, dtype=dtype)
        elif fake or is_cuda(device):  # numbers do not travel
            found = torch.zeros(self.shape, dtype=dtype, device=device)
        else:
            found = plain(self, *args, **kwargs)
        return found

    return to


def _copy(plain: Any) -> Any:
    def copy(self: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if isinstance(self, FakeTensor):
            return aten.copy_(self, source if isinstance(source, FakeTensor) else source.to(self.device))
        found: torch.Tensor = self.zero_() if isinstance(source, FakeTensor) else plain(self, source, non_blocking)
        return found

    return copy


def _cut(x: torch.Tensor, index: Any) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """x with ints, slices and None of an index applied, and the tensors in it by dimension."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if any(part is Ellipsis for part in parts):
        place = next(at for at, part in enumerate(parts) if part is Ellipsis)
        whole = x.ndim - sum(part is not None and part is not Ellipsis for part in parts)
        parts[place : place + 1] = [slice(None)] * whole
    tensors: list[torch.Tensor | None] = []
    dimension = 0
    for part in parts:
        if part is None:
            x, dimension = aten.unsqueeze(x, dimension), dimension + 1
        elif isinstance(part, slice):
            x = aten.slice.Tensor(x, dimension, part.start, part.stop, part.step or 1)
            dimension += 1
        elif isinstance(part, int | np.integer):
            x = aten.select.int(x, dimension, int(part))
        else:
            tensors += [None] * (dimension - len(tensors)) + [torch.as_tensor(part)]
            dimension += 1
    return x, tensors


def _get(self: torch.Tensor, index: Any) -> torch.Tensor:
    x, tensors = _cut(self, index)
    assert all(one is None or one.device == x.device for one in tensors), "an index is on another device"
    found: torch.Tensor = aten.index.Tensor(x, tensors) if tensors else x
    return found


def _set(self: torch.Tensor, index: Any, value: Any) -> None:
    x, tensors = _cut(self, index)
    put = value if isinstance(value, torch.Tensor) else torch.full((), value, dtype=x.dtype, device=x.device)
    if tensors:
        aten.index_put_(x, tensors, put)
    else:
        aten.copy_(x, put)


def make_methods_fake() -> None:
    torch.Tensor.to = _to(torch.Tensor.to)
    torch.Tensor.copy_ = _copy(torch.Tensor.copy_)
    torch.Tensor.pin_memory = lambda self, *_: self
    torch.Tensor.normal_ = lambda self, *_, **__: self
    FakeTensor.__getitem__, FakeTensor.__setitem__ = _get, _set
    for name, dtype in (("int", torch.int32), ("long", torch.int64), ("float", torch.float32), ("bool", torch.bool)):
        setattr(FakeTensor, name, functools.partialmethod(lambda self, dtype: aten._to_copy(self, dtype=dtype), dtype))
    FakeTensor.contiguous = lambda self, **_: (
        self if self.is_contiguous() else aten.clone(self, memory_format=torch.contiguous_format)
    )
    FakeTensor.cpu = lambda self: torch.zeros(self.shape, dtype=self.dtype)
    FakeTensor.tolist = lambda self: torch.zeros(self.shape, dtype=self.dtype).tolist()
    FakeTensor.item = lambda self: torch.zeros((), dtype=self.dtype).item()


# ---- The device


class Queue:
    """A stream, an event or a graph: all is done at once."""

    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def nothing(self, *_: Any, **__: Any) -> None: ...

    synchronize = wait_stream = wait_event = wait = record = replay = nothing

    def record_event(self, *_: Any) -> "Queue":
        return self

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: "Queue") -> float:
        return 1.0

    def manual_seed(self, _: int) -> "Queue":
        return self


def make_device() -> None:
    properties = types.SimpleNamespace(
        multi_processor_count=132, total_memory=140 * GIB, name="dry", major=9, minor=0, L2_cache_size=50 * 2**20
    )
    there: dict[str, Any] = {
        "is_available": True, "device_count": 1, "current_device": 0, "get_device_capability": (9, 0), "get_device_name": "dry",
        "get_device_properties": properties, "mem_get_info": (120 * GIB, 140 * GIB), "memory_reserved": 20 * GIB,
        "max_memory_reserved": 21 * GIB, "memory_allocated": 20 * GIB, "graph_pool_handle": 0, "synchronize": None,
        "empty_cache": None, "reset_peak_memory_stats": None, "is_current_stream_capturing": False, "set_device": None,
        "_lazy_init": None,
    }  # fmt: skip
    for name, value in there.items():
        setattr(torch.cuda, name, lambda *_, value=value, **__: value)
    for name in ("Stream", "Event", "CUDAGraph", "current_stream"):
        setattr(torch.cuda, name, Queue)
    torch.Generator = Queue
    torch.cuda.stream = torch.cuda.graph = torch.cuda.device = lambda *_, **__: contextlib.nullcontext()


# ---- Kernels


def launch(self: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
    """Its arguments fit its signature, and its tensors are on the device."""
    options = {name: kwargs.pop(name) for name in ("num_warps", "num_stages", "launch_pdl") if name in kwargs}
    assert all(isinstance(value, bool | int) for value in options.values())
    for name, value in self.signature.bind(*args, **kwargs).arguments.items():
        assert not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor), f"{self.__name__}: {name} is on the host"
    assert all(size >= 0 for size in (grid({}) if callable(grid) else grid))
    launches[self.__name__] += 1


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tile_mn: Any = None, mma_pv_is_rs: Any = None,
           intra_wg_overlap: Any = None, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """In place of flash-attn-4."""
    launches["flash attention"] += 1
    return torch.empty_like(q), torch.empty(q.shape[1], q.shape[0], dtype=torch.float32, device=q.device)


def make_kernels() -> None:
    JITFunction.run = launch
    names = ("flash_attn", "flash_attn.cute", "flash_attn.cute.interface")
    modules = [types.ModuleType(name) for name in names]
    for name, module in zip(names, modules, strict=True):
        module.__spec__ = types.SimpleNamespace(name=name)  # type: ignore[assignment]
        sys.modules[name] = module
    modules[1].flash_attn_varlen_func = attend  # type: ignore[attr-defined]
    modules[2]._flash_attn_fwd = attend  # type: ignore[attr-defined]
    import sightline.ops.kernels

    sightline.ops.kernels.keep_compiled = lambda: None
    sightline.ops.kernels._register_quack = lambda: None


def main() -> None:
    family, size, quantization = sys.argv[1:]
    from sightline.models.create import create_checkpoint

    with tempfile.TemporaryDirectory() as folder:
        create_checkpoint(Path(folder) / "model", family, size, weights=False)
        make_device()
        make_kernels()
        make_factories_fake()
        make_methods_fake()
        ask(Path(folder) / "model", quantization)
    print(json.dumps(launches))


def ask(folder: Path, quantization: str) -> None:
    from PIL import Image

    from sightline import LLM, SamplingParams

    settings: dict[str, Any] = {} if quantization == "none" else {"quantization": "fp8"}
    if quantization == "fp8-kv":
        settings["kv_cache_dtype"] = "fp8"
    settings |= {"max_num_seqs": 8, "max_num_batched_tokens": 2048}  # few graphs, and chunks that are worth gathering keys for
    with LLM(folder, device="cuda", load_format="dummy", max_model_len=16384, **settings) as llm:
        picture = {"type": "image", "image": Image.new("RGB", (640, 480))}
        words = {"type": "text", "text": "word " * 3000}
        for parts, sampling in (
            ([picture, {"type": "text", "text": "What is it?"}], SamplingParams(max_tokens=8, ignore_eos=True)),
            ([words], SamplingParams(max_tokens=8, ignore_eos=True, temperature=0.8, top_p=0.9, repetition_penalty=1.1, n=3)),
            ([picture, words], SamplingParams(max_tokens=4, ignore_eos=True, logprobs=True, top_logprobs=3)),
        ):
            answers = llm.chat([{"role": "user", "content": parts}], sampling)
            for answer in answers if isinstance(answers, list) else [answers]:
                assert len(answer.token_ids) == sampling.max_tokens, answer


if __name__ == "__main__":
    main()
