"""Shapes at which ops of the language model are timed: rows of decoding, rows of prefill."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

from benchmarks.measure.kernel_case import Arguments, KernelCase, Maker, Setting, norm_arguments
from sightline.config import EngineConfig
from sightline.ops.fp8 import BLOCK, FP8
from sightline.ops.linear import SPLIT_SUMS_BYTES
from sightline.ops.paged_cache import PagedCache
from sightline.ops.pages import gathered_bytes, rows_of
from sightline.ops.qkv import HeadNorms
from sightline.ops.rotary import RotaryAngles, RotaryTable, TextRotation, make_rotary_table, mrope_axes
from sightline.ops.sequences import PagedSequences
from sightline.ops.split_kv import SplitKV, make_split_kv
from sightline.ops.workspace import Workspace


def _merge_embeddings(at: Setting) -> Iterator[KernelCase]:
    text, vision = at.spec.text, at.spec.vision
    table = at.normal(text.vocab_size, text.hidden_size)

    def make(rows: int) -> Arguments:
        index = torch.arange(rows, device=at.device)  # an image and a few words after it
        return {
            "token_ids": at.integers(0, text.vocab_size, rows),
            "table": table,
            "vision_embeddings": at.normal(rows, vision.embedding_width),
            "embedding_index": torch.where(index < rows * 15 // 16, index, -1),
        }

    for rows in at.sizes.rows:
        yield KernelCase(f"{rows}x{text.hidden_size}", partial(make, rows), 2 * at.itemsize * rows * text.hidden_size)


def _rms_norm(at: Setting) -> Iterator[KernelCase]:
    size = at.spec.text.hidden_size
    for rows in at.sizes.rows:
        yield KernelCase(
            f"{rows}x{size}", partial(norm_arguments, at, rows, size, "x", bias=False), 2 * at.itemsize * rows * size
        )


def _add_rms_norm(at: Setting) -> Iterator[KernelCase]:
    size = at.spec.text.hidden_size
    for rows in at.sizes.rows:
        moved = 4 * at.itemsize * rows * size
        yield KernelCase(f"{rows}x{size}", partial(norm_arguments, at, rows, size, "x", "residual", bias=False), moved)


def _add_rms_norm_rows(at: Setting) -> Iterator[KernelCase]:
    size = at.spec.text.hidden_size

    def make(rows: int) -> Arguments:
        deepstack_features = at.normal(rows, 2 * size)[:, size:]
        index = torch.arange(rows, device=at.device)
        return {**norm_arguments(at, rows, size, "x", "residual", bias=False), "rows": deepstack_features, "index": index}

    for rows in at.sizes.rows:
        yield KernelCase(f"{rows}x{size}", partial(make, rows), 5 * at.itemsize * rows * size)


def _silu_mul(at: Setting) -> Iterator[KernelCase]:
    size = at.spec.text.gated_mlp.intermediate_size

    def make(rows: int) -> Arguments:
        return {"gate_up": at.normal(rows, 2 * size)}

    for rows in at.sizes.rows:
        yield KernelCase(f"{rows}x{size}", partial(make, rows), 3 * at.itemsize * rows * size)


def _linear(at: Setting) -> Iterator[KernelCase]:
    text, attention = at.spec.text, at.spec.text.attention
    heads = attention.num_heads * attention.head_dim
    qkv = heads + 2 * attention.num_kv_heads * attention.head_dim
    maps = ((text.hidden_size, qkv), (heads, text.hidden_size), (text.gated_mlp.intermediate_size, text.hidden_size))
    workspace = Workspace("split sums", SPLIT_SUMS_BYTES, at.device)

    def make(case: KernelCase) -> Arguments:
        return {**case.make(), "workspace": workspace}

    for rows, (size, out) in itertools.product(at.sizes.rows, dict.fromkeys(maps)):
        case = _gemm(at, rows, size, out, out)
        yield replace(case, make=partial(make, case))


def _linear_silu_mul(at: Setting) -> Iterator[KernelCase]:
    for rows in at.sizes.rows:
        yield _gemm(
            at,
            rows,
            at.spec.text.hidden_size,
            2 * at.spec.text.gated_mlp.intermediate_size,
            at.spec.text.gated_mlp.intermediate_size,
        )


def _gemm(at: Setting, rows: int, size: int, out: int, written: int) -> KernelCase:
    def make() -> Arguments:
        return {"x": at.normal(rows, size), "weight": size**-0.5 * at.normal(out, size), "bias": None}

    moved = at.itemsize * (size * out + rows * (size + written))
    return KernelCase(f"{rows}x{size} to {out}", make, moved, 2.0 * rows * size * out)


def _projection(at: Setting, rows: int, table: RotaryTable) -> Arguments:
    text, attention = at.spec.text, at.spec.text.attention
    return {
        "qkv": at.normal(rows, attention.num_heads + 2 * attention.num_kv_heads, attention.head_dim),
        "norms": HeadNorms(at.normal(attention.head_dim), at.normal(attention.head_dim), text.norm_eps)
        if attention.qk_norm
        else None,
        "rotation": TextRotation(
            at.integers(0, 32_768, 3, rows, dtype=torch.int32),
            table,
            mrope_axes(attention.rope.sections, attention.rope.layout, at.device),
            attention.rope.pairing,
        ),
    }


def _rotary_table(at: Setting) -> RotaryTable:
    rope = at.spec.text.attention.rope
    return make_rotary_table(40_000, rope.rotary_dim, rope.theta, at.device)


def _cache(at: Setting, pages: int) -> PagedCache:
    attention = at.spec.text.attention
    shape = (pages, EngineConfig().page_size, attention.num_kv_heads, attention.head_dim)
    return PagedCache(at.normal(*shape), at.normal(*shape))


def _rotate_and_store(at: Setting) -> Iterator[KernelCase]:
    attention, table = at.spec.text.attention, _rotary_table(at)

    def make(rows: int) -> Arguments:
        page_size = EngineConfig().page_size
        pages = -(-rows // page_size) + 1
        return {
            **_projection(at, rows, table),
            "cache": _cache(at, pages),
            "slots": torch.arange(rows, device=at.device),
        }

    numbers = (attention.num_heads + 2 * attention.num_kv_heads) * attention.head_dim
    for rows in at.sizes.rows:
        yield KernelCase(f"{rows}x{numbers}", partial(make, rows), 2 * at.itemsize * rows * numbers)


def _attend_new_tokens(at: Setting) -> Iterator[KernelCase]:
    """Steps of decoding, whose new keys and values go to the ends of their last pages."""
    table, page_size = _rotary_table(at), EngineConfig().page_size

    def make(case: KernelCase, listed: bool) -> Arguments:
        arguments = case.make()
        del arguments["q"]
        pages, contexts = arguments["sequences"].page_table, arguments["sequences"].context_lengths_host
        last = at.tensor(contexts).long() - 1
        slots = pages.gather(1, (last // page_size)[:, None])[:, 0].long() * page_size + last % page_size
        made = {**_projection(at, len(pages), table), **arguments, "slots": slots}
        if listed:
            shared = make_split_kv(contexts, len(contexts) + 1024 // at.spec.text.attention.num_kv_heads, 128)
            made["split_kv"] = SplitKV(**{name: at.tensor(values.tolist()) for name, values in shared.items()})
        return made

    for context in at.sizes.contexts:
        for sequences in at.sizes.decode_rows:
            case = _paged(at, 1, (context,) * sequences, f"{sequences} x 1 over {context}")
            yield replace(case, make=partial(make, case, False))
    short, *_, long = at.sizes.contexts
    for sequences in at.sizes.decode_rows[1:]:
        contexts = (long, *(short,) * (sequences - 1))
        for listed, how in ((False, "in equal parts"), (True, "by a list")):
            case = _paged(at, 1, contexts, f"{sequences} x 1 over {short}, one {long}, {how}")
            yield replace(case, make=partial(make, case, listed))


def _paged_attention(at: Setting) -> Iterator[KernelCase]:
    for context in at.sizes.contexts:
        for sequences in at.sizes.decode_rows:
            yield _paged(at, 1, (context,) * sequences, f"{sequences} x 1 over {context}")
        for queries in at.sizes.prefill_rows:
            if queries <= context:
                yield _paged(at, queries, (context,), f"1 x {queries} over {context}")
    short, *_, long = at.sizes.contexts
    for sequences in at.sizes.decode_rows[1:]:
        yield _paged(at, 1, (long, *(short,) * (sequences - 1)), f"{sequences} x 1 over {short}, one {long}")


def _paged(at: Setting, queries: int, contexts: tuple[int, ...], shape: str) -> KernelCase:
    attention = at.spec.text.attention
    page_size = EngineConfig().page_size
    pages = [-(-context // page_size) for context in contexts]

    def make() -> Arguments:
        order = torch.randperm(sum(pages), device=at.device).to(torch.int32)
        table = torch.nn.utils.rnn.pad_sequence(order.split(pages), batch_first=True)
        return {
            "q": at.normal(len(contexts) * queries, attention.num_heads, attention.head_dim),
            "cache": _cache(at, sum(pages)),
            "sequences": PagedSequences(
                page_table=table.contiguous(),
                query_starts=at.tensor(list(range(0, (len(contexts) + 1) * queries, queries))),
                context_lengths=at.tensor(contexts),
                query_lengths_host=(queries,) * len(contexts),
                context_lengths_host=contexts,
                workspace=_to_gather(at, contexts),
            ),
        }

    heads = attention.num_heads * attention.head_dim
    seen = sum(queries * (context - queries) + queries * (queries + 1) / 2 for context in contexts)  # pairs of query and key
    kept = 2 * sum(contexts) * attention.num_kv_heads * attention.head_dim
    moved = at.itemsize * (kept + 2 * len(contexts) * queries * heads)
    return KernelCase(shape, make, moved, 4.0 * seen * heads)


def _to_gather(at: Setting, contexts: tuple[int, ...]) -> Workspace:
    attention = at.spec.text.attention
    size = gathered_bytes(rows_of(contexts, 128), attention.num_kv_heads, attention.head_dim, at.dtype)
    return Workspace("gathered", size, at.device)


def _gather_pages(at: Setting) -> Iterator[KernelCase]:
    attention = at.spec.text.attention
    page_size = EngineConfig().page_size

    def make(context: int) -> Arguments:
        pages = -(-context // page_size)
        return {
            "cache": _cache(at, pages),
            "page_table": torch.randperm(pages, device=at.device).to(torch.int32)[None],
            "context_lengths": at.tensor([context]),
            "context_lengths_host": (context,),
            "multiple": 128,
            "dtype": at.dtype,
            "workspace": _to_gather(at, (context,)),
        }

    for context in at.sizes.contexts:
        moved = 4 * at.itemsize * context * attention.num_kv_heads * attention.head_dim  # keys and values, read and written
        yield KernelCase(f"{context} tokens", partial(make, context), moved)


def _copy_pages(at: Setting) -> Iterator[KernelCase]:
    attention = at.spec.text.attention
    page = (EngineConfig.page_size, attention.num_kv_heads, attention.head_dim)

    def make(count: int) -> Arguments:
        caches = [at.normal(2 * count, *page) for _ in range(2 * len(at.spec.text.layers))]
        order = torch.arange(2 * count, device=at.device)
        return {"caches": caches, "sources": order[:count], "targets": order[count:]}

    for count in (1, 8):
        moved = 2 * at.itemsize * count * 2 * len(at.spec.text.layers) * math.prod(page)
        yield KernelCase(f"{count} of {page[0]} tokens, {len(at.spec.text.layers)} layers", partial(make, count), moved)


def _quantise_rows(at: Setting) -> Iterator[KernelCase]:
    size = at.spec.text.hidden_size

    def make(rows: int) -> Arguments:
        return {"x": at.normal(rows, size), "group": size}

    for rows in at.sizes.rows:
        yield KernelCase(f"{rows}x{size}", partial(make, rows), rows * (size * (at.itemsize + 1) + 4))


def _fp8_linear(at: Setting, blocks: bool, gated: bool = False) -> Iterator[KernelCase]:
    inner, size = at.spec.text.gated_mlp.intermediate_size, at.spec.text.hidden_size
    out = 2 * inner
    scales = (-(-out // BLOCK), -(-size // BLOCK)) if blocks else (out,)
    workspace = Workspace("split sums", SPLIT_SUMS_BYTES, at.device)

    def make(rows: int) -> Arguments:
        weight = (100 * at.normal(out, size, dtype=torch.float32)).clamp(-448, 448).to(FP8)
        scale = 0.01 * size**-0.5 * (0.5 + at.normal(*scales, dtype=torch.float32).abs())
        return {"x": at.normal(rows, size), "weight": weight, "weight_scale": scale, "bias": None, "workspace": workspace}

    for rows in at.sizes.rows:
        moved = size * out + at.itemsize * rows * (size + (inner if gated else out))
        yield KernelCase(f"{rows}x{size} to {out}", partial(make, rows), moved, 2.0 * rows * size * out, speed=2.0)


def _fp8_linear_silu_mul(at: Setting) -> Iterator[KernelCase]:
    for blocks in (False, True):
        for case in _fp8_linear(at, blocks, gated=True):
            yield replace(case, shape=f"{case.shape}, a scale per {'block' if blocks else 'channel'}")


def _rotary(at: Setting) -> Iterator[KernelCase]:
    """Queries and keys of towers with head sizes that few kernels take, by row and column."""
    table_rows = 512

    def make(rows: int, size: int, ready: bool) -> Arguments:
        table = make_rotary_table(table_rows, size // 2, 10000.0, at.device)
        axes = torch.arange(2, device=at.device).repeat_interleave(size // 4)
        angles = RotaryAngles(table.cos, table.sin, at.integers(0, table_rows, rows, 2).T, axes)
        q, k, _ = at.normal(rows, 3, 16, size).unbind(1)
        return {"q": q, "k": k, "angles": angles.ready() if ready else angles, "pairing": "halves"}

    for rows, size, ready in itertools.product(at.sizes.prefill_rows, (72, 80), (False, True)):
        moved = 2 * at.itemsize * rows * 2 * 16 * size
        yield KernelCase(f"{rows}x32x{size}{' ready' if ready else ''}", partial(make, rows, size, ready), moved)


TEXT_SHAPES: dict[str, Maker] = {
    "rotary": _rotary,
    "merge_embeddings": _merge_embeddings,
    "rms_norm": _rms_norm,
    "add_rms_norm": _add_rms_norm,
    "add_rms_norm_rows": _add_rms_norm_rows,
    "silu_mul": _silu_mul,
    "linear": _linear,
    "linear_silu_mul": _linear_silu_mul,
    "rotate_and_store": _rotate_and_store,
    "paged_attention": _paged_attention,
    "attend_new_tokens": _attend_new_tokens,
    "gather_pages": _gather_pages,
    "copy_pages": _copy_pages,
    "quantise_rows": _quantise_rows,
    "fp8_linear": partial(_fp8_linear, blocks=False),
    "fp8_block_linear": partial(_fp8_linear, blocks=True),
    "fp8_linear_silu_mul": _fp8_linear_silu_mul,
}
