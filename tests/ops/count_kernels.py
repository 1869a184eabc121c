"""A program: how many kernels would be compiled for images and batches of many sizes. Each one holds everybody up for a while.

Kernels are called with CPU tensors, and in place of a launch what it would be compiled for is noted. Prints a line per kernel.
"""

import os
from collections import Counter
from typing import Any

import torch
from triton.runtime.jit import JITFunction

import sightline.ops.triton
from ops.compile_kernels import specialised
from sightline.ops.attention import paged_attention
from sightline.ops.causal_conv import new_sequences
from sightline.ops.dispatch import OPS, ExampleMaker
from sightline.ops.experts import needs_lists
from sightline.ops.kernels import register_kernels
from sightline.ops.new_tokens import attend_new_tokens
from sightline.ops.paged_cache import PagedCache
from sightline.ops.pages import gather_pages, gathered_bytes
from sightline.ops.patch_positions import patch_positions
from sightline.ops.pixels import patchify, resize_bicubic
from sightline.ops.position_grid import add_position_grid
from sightline.ops.qkv import HeadNorms, rotate_and_store
from sightline.ops.rotary import TextRotation, make_patch_rotary, make_rotary_table, mrope_axes, vision_rotary
from sightline.ops.sequences import PagedSequences
from sightline.ops.tail import join_parts, repeat_tail
from sightline.ops.workspace import Workspace

MEAN = STD = (0.5, 0.5, 0.5)
kernels: dict[str, set[str]] = {}


def note(self: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
    kernels.setdefault(self.__name__, set()).add(str(specialised(self, args, kwargs)))


def by_triton(name: str, *arguments: Any) -> Any:
    kernel = next(kernel for kernel in OPS[name].kernels if kernel.name.startswith("triton") and kernel.when(*arguments))
    return kernel.run(*arguments)


def images_of_many_sizes() -> None:
    for height, width in ((64, 64), (333, 517), (1080, 1920), (48, 2000), (3000, 37), (160, 176)):
        picture = torch.zeros(1, height, width, 3, dtype=torch.uint8)
        for out_height, out_width in ((64, 96), (32, 1024), (1056, 32), (448, 448)):
            for rows_first in (True, False):
                by_triton("resize_bicubic", picture, out_height, out_width, rows_first)
            small = torch.zeros(1, out_height, out_width, 3, dtype=torch.uint8)
            by_triton("patchify", small, MEAN, STD, 16, 2, 2, True, torch.bfloat16)


def towers_of_many_patches() -> None:
    rotary = make_patch_rotary(64, 40, 10000.0, torch.device("cpu"), "adjacent", 2, 80)
    for images, patches in ((1, 4), (1, 16), (2, 36), (7, 1024), (64, 8160)):
        grids, starts = torch.zeros(images, 3, dtype=torch.int32), torch.zeros(images + 1, dtype=torch.int32)
        row_col, sizes = by_triton("patch_positions", grids, starts, patches, 2)
        hidden, positions = torch.zeros(patches, 64).bfloat16(), torch.zeros(256, 64).bfloat16()
        by_triton("add_position_grid", hidden, positions, row_col, sizes, "bilinear", True)
        by_triton("vision_rotary", torch.zeros(patches, 3, 2, 80).bfloat16(), row_col.T.contiguous().T, rotary)
    for patches, body, parts in ((3520, 3072, 2), (8160, 7872, 4), (14400, 14208, 8), (4001, 3989, 1)):
        qkv, starts = torch.zeros(patches, 3, 2, 80).bfloat16(), torch.zeros(2, dtype=torch.int32)
        by_triton("repeat_tail", qkv[:, 0], starts, body, parts, 2048)
        rows = patches - body
        attended, log_sums = torch.zeros(parts * rows, 2, 80).bfloat16(), torch.zeros(2, parts * rows)
        by_triton("join_parts", attended, log_sums, parts, torch.zeros(patches, 2, 80).bfloat16()[body:])


def steps_of_many_tokens() -> None:
    cpu, cache = torch.device("cpu"), PagedCache(*torch.zeros(2, 8, 16, 2, 128).bfloat16())
    table, axes = make_rotary_table(64, 128, 10000.0, cpu), mrope_axes((24, 20, 20), "interleaved", cpu)
    for tokens in (17, 32, 333, 1024):
        qkv, positions = torch.zeros(tokens, 8, 128).bfloat16(), torch.zeros(3, tokens, dtype=torch.int32)
        weight = torch.zeros(128).bfloat16()
        slots = torch.zeros(tokens, dtype=torch.int64)
        rotation = TextRotation(positions, table, axes, "halves")
        by_triton("rotate_and_store", qkv, HeadNorms(weight, weight, 1e-6), rotation, cache, slots)
    workspace = Workspace("gathered", gathered_bytes(30_000, 2, 128, torch.bfloat16), cpu)
    for sequences, pages, context in ((1, 1, 9), (1, 16, 100_000), (3, 17, 3000), (5, 3, 100_000), (40, 9, 70), (200, 4, 900)):
        page_table = torch.zeros(sequences, pages, dtype=torch.int32)
        lengths, starts = torch.ones(sequences, dtype=torch.int32), torch.arange(sequences + 1, dtype=torch.int32)
        kept = (16 * pages,) * sequences
        by_triton("gather_pages", cache, page_table, lengths, kept, 128, torch.bfloat16, workspace)
        paged = PagedSequences(page_table, starts, lengths, (1,) * sequences, (context,) * sequences)
        by_triton("paged_attention", torch.zeros(sequences, 4, 128).bfloat16(), cache, paged)
        rotation = TextRotation(torch.zeros(3, sequences, dtype=torch.int32), table, axes, "halves")
        slots, qkv = torch.zeros(sequences, dtype=torch.int64), torch.zeros(sequences, 8, 128).bfloat16()
        by_triton("attend_new_tokens", qkv, HeadNorms(weight, weight, 1e-6), rotation, cache, slots, paged)


def steps_with_states() -> None:
    """Prompts of many lengths among single tokens, and single tokens alone."""
    maker = ExampleMaker(torch.device("cpu"), torch.bfloat16)
    float32 = {"dtype": torch.float32}
    for lengths in ((2,), (333,), (1024, 1), (70, 1, 1), (5, 9) * 40, (1,) * 9 + (300,), (1,) * 150, (1,) * 20, (1,)):
        tokens, slots = sum(lengths), len(lengths)
        sequences, states = new_sequences(maker, lengths, (False,) * slots, slots)
        x, kept = maker.normal(tokens, 384), maker.normal(slots, 3, 320)
        mixed = by_triton("causal_conv", x[:, :320], maker.normal(320, 4), kept, sequences, states)
        rates, own = maker.normal(tokens, 8), (maker.normal(4, **float32), maker.normal(4, **float32))
        state = maker.normal(slots, 4, 16, 64, **float32)
        by_triton("gated_delta_rule", mixed, rates[:, :4], rates[:, 4:], *own, state, sequences, states)


def experts_of_many_tokens() -> None:
    count, chosen, size, inner = 8, 2, 64, 32
    gate_up, down = torch.zeros(count, 2 * inner, size).bfloat16(), torch.zeros(count, size, inner).bfloat16()
    for tokens in (1, 2, 3, 5, 16, 31, 64, 127, 128, 129, 250, 512, 1000, 1024, 2047, 2304):
        experts, weights = by_triton(
            "route_tokens", torch.zeros(tokens, count).bfloat16(), None, chosen, "softmax", 1.0, "none"
        )
        lists = by_triton("group_pairs", experts, count) if needs_lists(experts, count) else None
        between = by_triton("expert_gate_up", torch.zeros(tokens, size).bfloat16(), experts, lists, gate_up, None)
        outputs = by_triton("expert_down", between, experts, lists, down, None, weights)
        by_triton("sum_expert_outputs", outputs, torch.zeros(tokens, size).bfloat16())


def main() -> None:
    assert os.environ.get("TRITON_INTERPRET") != "1"
    sightline.ops.triton.INTERPRETED = True  # kernels take CPU tensors
    JITFunction.run = note
    ops = (resize_bicubic, patchify, patch_positions, add_position_grid, vision_rotary, rotate_and_store, gather_pages)
    assert all(op.name in OPS for op in (*ops, repeat_tail, join_parts, paged_attention, attend_new_tokens))
    register_kernels()
    images_of_many_sizes()
    towers_of_many_patches()
    steps_of_many_tokens()
    steps_with_states()
    experts_of_many_tokens()
    for name, count in Counter({name: len(found) for name, found in kernels.items()}).items():
        print(name, count)


if __name__ == "__main__":
    main()
