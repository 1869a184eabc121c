"""The memory plan: what is left for pages, what one that does not fit says, and that nothing goes beyond what was planned."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import FAMILIES
from engine.harness import driver, loaded, request_of, small_picture
from sightline.config import EngineConfig
from sightline.engine.activation_peak import (
    GraphSizes,
    Peaks,
    decoder_bytes,
    fewer_pixels,
    graph_sizes,
    largest_frame,
    largest_item,
    pixel_bytes,
    room_to_gather,
)
from sightline.engine.memory import MARGIN_BYTES, DeviceMemory, MemoryPlan, plan_memory, plan_on_cpu, plan_on_gpu
from sightline.engine.out_of_memory import recover
from sightline.engine.rehearsal import chunk_lengths, rehearse_language, rehearse_sampling, rehearse_tower, square_grid
from sightline.errors import ConfigError, OutOfMemoryError
from sightline.ops.pages import GatheringRoom, most_gathered
from sightline.run.step_graphs import buckets
from sightline.vision.graphs import MOST_PATCHES
from sightline.vision.graphs import buckets as tower_buckets
from sightline.vision.patches import GROUP_BYTES

GB = 1024**3
PEAKS = Peaks(language=2 * GB, sampling=GB // 2, tower=2 * GB, pixels=GB // 2, graphs=GB // 4)
DEVICE = DeviceMemory(total=80 * GB, taken=20 * GB, others=GB)


@pytest.fixture(scope="module")
def spec(tiny_checkpoints: dict[str, Path]) -> Any:
    """Keys and values of 147,456 bytes per token in bfloat16, as Qwen3-VL-8B has, and rows of 32 KiB."""
    tiny = loaded(tiny_checkpoints["qwen3-vl"]).spec
    text = dataclasses.replace(tiny.text, num_layers=36, num_kv_heads=8, head_dim=128)
    vision = dataclasses.replace(tiny.vision, out_hidden_size=4096, deepstack_layers=(1, 2, 3))
    return dataclasses.replace(tiny, text=text, vision=vision)


def plan(spec: Any, longest: int = 32768, device: DeviceMemory = DEVICE, peaks: Peaks = PEAKS, **settings: Any) -> MemoryPlan:
    return plan_on_gpu(EngineConfig(**settings), spec, torch.bfloat16, longest, device, peaks)


def test_pages_get_what_is_left(spec: Any) -> None:
    made = plan(spec)
    spent = DEVICE.taken + made.arena_bytes + PEAKS.activations + PEAKS.graphs + MARGIN_BYTES + made.kv_bytes
    assert 0 <= 0.9 * DEVICE.total - spent < made.page_bytes
    assert made.page_bytes == 16 * 147_456
    assert made.arena_bytes == 4 * GB


@pytest.mark.parametrize("change", ["language", "sampling", "tower", "pixels", "graphs"])
def test_each_peak_costs_pages(spec: Any, change: str) -> None:
    more = dataclasses.replace(PEAKS, **{change: getattr(PEAKS, change) + GB})
    lost = plan(spec).kv_bytes - plan(spec, peaks=more).kv_bytes
    assert GB - plan(spec).page_bytes <= lost <= GB + plan(spec).page_bytes


def advice(spec: Any, **given: Any) -> dict[str, float]:
    """The settings that the refusal names, with the values it recommends."""
    with pytest.raises(ConfigError) as caught:
        plan(spec, **given)
    sentence = str(caught.value)
    assert sentence.endswith(".") and "\n" not in sentence
    words = sentence[:-1].replace(",", "").split()
    return {words[at - 1]: float(words[at + 1]) for at, word in enumerate(words) if word == "to"}


@pytest.mark.parametrize("longest", [262_144, 300_000, 400_000])
def test_what_a_refusal_recommends_would_fit(spec: Any, longest: int) -> None:
    """Each change alone is enough: red when the arithmetic of the advice and of the plan part."""
    device = DeviceMemory(total=60 * GB, taken=18 * GB, others=GB)
    found = advice(spec, longest=longest, device=device)
    assert "max_model_len" in found
    assert plan(spec, longest=int(found.pop("max_model_len")), device=device).pages
    smaller = {"max_num_batched_tokens": "language", "max_patches_per_step": "tower"}
    for name, value in found.items():
        default = getattr(EngineConfig(), name)
        peaks = PEAKS
        if name in smaller:
            part = smaller[name]
            peaks = dataclasses.replace(PEAKS, **{part: int(getattr(PEAKS, part) * value / default)})
            value = int(value)
        assert plan(spec, longest=longest, device=device, peaks=peaks, **{name: value}).pages


def test_a_small_shortage_names_every_way_out(spec: Any) -> None:
    least = 20 * GB + 4 * GB + PEAKS.activations + PEAKS.graphs + MARGIN_BYTES + (262_144 // 16 + 1) * 16 * 147_456
    device = DeviceMemory(total=int(least / 0.9) - GB // 2, taken=20 * GB, others=GB)
    found = advice(spec, longest=262_144, device=device)
    assert set(found) == {"gpu_memory_utilization", "max_model_len", "max_num_batched_tokens", "embedding_cache_gb"}
    assert 0.9 < found["gpu_memory_utilization"] <= 0.92
    assert 250_000 < found["max_model_len"] < 262_144
    assert 4096 < found["max_num_batched_tokens"] < 8192


def test_a_gpu_that_is_far_too_small_gets_no_advice(spec: Any) -> None:
    with pytest.raises(ConfigError, match="the GPU is too small for this model"):
        plan(spec, device=DeviceMemory(total=16 * GB, taken=int(15.9 * GB), others=0), longest=262_144)


def test_a_cache_that_was_asked_for_must_fit(spec: Any) -> None:
    assert plan(spec, kv_cache_gb=20.0).pages == 20 * GB // (16 * 147_456)
    found = advice(spec, kv_cache_gb=60.0)
    assert plan(spec, kv_cache_gb=found["kv_cache_gb"]).pages
    with pytest.raises(ConfigError, match=r"kv_cache_gb is 1.0, room for \d+ tokens, but a sequence may have 32768; raise"):
        plan(spec, kv_cache_gb=1.0)


def test_a_cpu_has_room_for_one_sequence_whatever_its_length(spec: Any) -> None:
    assert plan_on_cpu(EngineConfig(), spec, torch.float32, 100_000).pages == 100_000 // 16 + 1
    with pytest.raises(ConfigError, match=r"raise kv_cache_gb to 27\.471"):
        plan_on_cpu(EngineConfig(kv_cache_gb=0.5), spec, torch.float32, 100_000)


@pytest.mark.parametrize("share", [0.0, 1.5])
def test_utilization_is_a_share(tiny_checkpoints: dict[str, Path], share: float) -> None:
    with pytest.raises(ConfigError, match="gpu_memory_utilization is"):
        driver(tiny_checkpoints["qwen3-vl"], gpu_memory_utilization=share)


def test_every_graph_that_an_engine_records_is_counted(spec: Any) -> None:
    """Red when the engine records graphs that the plan does not know of."""
    config = EngineConfig(max_num_seqs=64, max_num_batched_tokens=8192)
    sizes = graph_sizes(config, spec.vision, tower=True, steps=True)
    steps, towers = buckets(64, 8192), tower_buckets(spec.vision)
    assert sizes.step_tokens == max(bucket.tokens for bucket in steps)
    assert sizes.step_graphs == len(steps) and sizes.step_logits == sum(bucket.sequences for bucket in steps)
    assert sizes.tower_patches == MOST_PATCHES == towers[-1].patches and sizes.tower_graphs == len(towers)
    assert graph_sizes(config, spec.vision, tower=False, steps=False) == GraphSizes()


# ---- What is rehearsed


@pytest.mark.parametrize(("tokens", "sequences", "longest"), [(8192, 256, 262_144), (8192, 4, 1000), (5, 256, 100), (7, 1, 7)])
def test_the_largest_step_has_all_tokens_and_all_sequences(tokens: int, sequences: int, longest: int) -> None:
    lengths = chunk_lengths(tokens, sequences, longest)
    assert sum(lengths) == tokens and min(lengths) >= 1 and max(lengths) <= longest
    assert len(lengths) >= min(sequences, tokens)


@pytest.mark.parametrize("patches", [4, 100, 4096, 65_536, 99_999])
def test_the_largest_frame_is_no_smaller_than_asked(patches: int) -> None:
    frames, height, width = square_grid(patches, 2)
    assert frames == 1 and height % 2 == width % 2 == 0
    assert patches <= height * width < patches + 2 * height + 4


@pytest.mark.parametrize("family", FAMILIES)
def test_rehearsals_run_on_every_family(tiny_checkpoints: dict[str, Path], family: str) -> None:
    llm = loaded(tiny_checkpoints[family])
    layers = list(llm.model.text.layers)
    logits = rehearse_language(llm.model, tokens=40, sequences=8, longest=100, page_size=16, room=GatheringRoom(0))
    assert logits.shape == (8, llm.spec.text.vocab_size)
    assert list(llm.model.text.layers) == layers
    rows = rehearse_tower(llm.model, 100)
    assert len(rows) >= 25 and rows.shape[1] == llm.spec.vision.row_width
    rehearse_sampling(llm.spec.text.vocab_size, 8, torch.device("cpu"), torch.float32)


def test_all_steps_gather_into_one_room(tiny_checkpoints: dict[str, Path]) -> None:
    """Of the size that was rehearsed."""
    folder = tiny_checkpoints["qwen3-vl"]
    run, rooms = driver(folder, max_num_batched_tokens=16), []
    hook = run.engine.runner.model.register_forward_pre_hook(lambda _, given: rooms.append(given[0].sequences.room))
    try:
        run.add(request_of(folder, "A question that is longer than a step, so that there are several."))
        run.run()
    finally:
        hook.remove()
    assert len(rooms) > 5 and rooms[0] is not None and all(room is rooms[0] for room in rooms)
    rows = room_to_gather(EngineConfig(max_num_batched_tokens=16), loaded(folder).max_model_len)
    assert vars(rooms[0]) == vars(rows)


@pytest.mark.parametrize("gathers", [True, False])
def test_the_room_is_taken_at_the_start_if_the_plan_has_it(
    tiny_checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch, gathers: bool
) -> None:
    """Red when the first long prompt takes it, which looks like a leak, or when it is taken where nothing is gathered."""
    planned = dataclasses.replace(PEAKS, room=2 * GB if gathers else 0)

    def plan(*given: object) -> MemoryPlan:
        return dataclasses.replace(plan_memory(*given), peaks=planned)  # type: ignore[arg-type]

    monkeypatch.setattr("sightline.engine.parts.plan_memory", plan)
    folder, config = tiny_checkpoints["qwen3-vl"], EngineConfig()
    room, text = driver(folder).engine.runner._room, loaded(folder).spec.text
    rows = most_gathered(config.max_num_batched_tokens, loaded(folder).max_model_len, config.max_num_seqs)
    assert room is not None and room.taken_bytes == gathers * 2 * rows * text.num_kv_heads * text.head_dim * 4


def test_a_rehearsal_that_fails_leaves_the_model_whole(tiny_checkpoints: dict[str, Path]) -> None:
    model = loaded(tiny_checkpoints["qwen3-vl"]).model
    layers = list(model.text.layers)
    with pytest.raises(RuntimeError):
        rehearse_language(model, tokens=4, sequences=2, longest=-5, page_size=16, room=GatheringRoom(0))
    assert list(model.text.layers) == layers


# ---- What a request may bring


def test_the_largest_frame_and_item_of_qwen3(tiny_checkpoints: dict[str, Path]) -> None:
    llm = loaded(tiny_checkpoints["qwen3-vl"])
    image = dataclasses.replace(llm.processor.image, max_pixels=16_777_216, patch_size=16)
    video = dataclasses.replace(llm.processor.video, max_pixels=25_165_824, patch_size=16)
    processor = dataclasses.replace(llm.processor, image=image, video=video)
    assert largest_frame(processor) == 65_536
    assert largest_item(processor, most_rows=1_000_000) == 65_536
    assert largest_item(processor, most_rows=1000) == 4000


def test_the_largest_item_of_qwen2_5_is_a_long_clip(tiny_checkpoints: dict[str, Path]) -> None:
    processor = loaded(tiny_checkpoints["qwen2.5-vl"]).processor
    video = dataclasses.replace(processor.video, max_pixels=602_112, max_frames=768, patch_size=14)
    long = dataclasses.replace(processor, video=video)
    assert largest_item(long, most_rows=1_000_000) == 384 * 3072
    assert largest_item(long, most_rows=131_072) == 4 * 131_072  # what the arena holds


@pytest.mark.parametrize("max_pixels", [16_777_216, 65_536])
def test_pixels_have_room_for_one_large_source(tiny_checkpoints: dict[str, Path], max_pixels: int) -> None:
    """Red when the plan grows with how many images a step may have: those wait for each other's pixels."""
    processor = loaded(tiny_checkpoints["qwen3-vl"]).processor
    image = dataclasses.replace(processor.image, max_pixels=max_pixels, patch_size=16)
    assert pixel_bytes(dataclasses.replace(processor, image=image), 150_000_000) == 3 * 2 * 3 * 150_000_000
    assert pixel_bytes(processor, 1) == 3 * GROUP_BYTES


@pytest.mark.parametrize("saving", [1, 10**6, 10**9, 19 * 10**8])
def test_smaller_sources_save_what_is_asked(tiny_checkpoints: dict[str, Path], saving: int) -> None:
    processor = loaded(tiny_checkpoints["qwen3-vl"]).processor
    fewer = fewer_pixels(processor, 150_000_000, saving)
    if saving > 18 * (150_000_000 - GROUP_BYTES // 6):  # below a group of small ones nothing is saved
        assert fewer is None
    else:
        assert fewer is not None and 0 < fewer < 150_000_000 and fewer % 10**6 == 0
        assert pixel_bytes(processor, 150_000_000) - pixel_bytes(processor, fewer) >= saving


def test_a_refusal_names_smaller_sources(spec: Any) -> None:
    least = 20 * GB + 4 * GB + PEAKS.activations + PEAKS.graphs + MARGIN_BYTES + (262_144 // 16 + 1) * 16 * 147_456
    device = DeviceMemory(total=int(least / 0.9) - GB // 2, taken=20 * GB, others=GB)
    asked: list[int] = []

    def smaller(saving: int) -> int:
        asked.append(saving)
        return 90_000_000

    with pytest.raises(ConfigError, match="or lower max_image_pixels to 90000000"):
        plan_on_gpu(EngineConfig(), spec, torch.bfloat16, 262_144, device, PEAKS, smaller)
    assert 0.4 * GB < asked[0] < 0.5 * GB


def test_a_decoder_on_the_gpu_keeps_room_of_its_own() -> None:
    def of(**settings: Any) -> int:
        return decoder_bytes(EngineConfig(decode_threads=4, **settings), max_image_pixels=150_000_000)

    assert of(image_decoder="cpu") == 0
    assert of(image_decoder="gpu") == 4 * 10 * 16_000_000 + 5 * GROUP_BYTES
    assert decoder_bytes(EngineConfig(decode_threads=1, image_decoder="gpu"), max_image_pixels=1000) == 10_000 + 5 * GROUP_BYTES


@pytest.mark.parametrize("family", FAMILIES)
def test_items_above_the_budget_go_through_the_tower_in_pieces(tiny_checkpoints: dict[str, Path], family: str) -> None:
    """A clip of 6 frames of 24 patches with a budget of 60: three runs, and the rows of one."""
    llm = loaded(tiny_checkpoints[family])
    whole, pieces = (driver(tiny_checkpoints[family], max_patches_per_step=most).engine for most in (65_536, 60))
    sizes: list[int] = []
    run = pieces.runner._run_tower
    pieces.runner._run_tower = lambda parts, grids: sizes.append(sum(map(len, parts))) or run(parts, grids)  # type: ignore
    item = request_of(tiny_checkpoints[family], small_picture(1)).items[0]
    clip = dataclasses.replace(item, grid=(6, 4, 6))
    width = llm.model.vision.patch_embed.weight.shape[1]
    patches = torch.from_numpy(np.random.default_rng(0).normal(size=(144, width)).astype(np.float32))
    expected = whole.runner.encode_patches([clip], [patches])
    found = pieces.runner.encode_patches([clip], [patches])
    assert sizes == [48, 48, 48]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


# ---- In spite of it all


def test_running_out_of_memory_costs_a_step_and_nothing_else(tiny_checkpoints: dict[str, Path]) -> None:
    made = driver(tiny_checkpoints["qwen3-vl"])
    compute, left = made.engine.runner.compute, [1]

    def once(*arguments: Any) -> Any:
        if left:
            left.pop()
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return compute(*arguments)

    made.engine.runner.compute = once  # type: ignore[method-assign]
    request = request_of(tiny_checkpoints["qwen3-vl"], "Hello")
    unlucky = made.add(request)
    made.run()
    assert isinstance(made.errors[unlucky], OutOfMemoryError)
    assert str(made.errors[unlucky]).startswith("The GPU ran out of memory in the step that computed this request;")
    lucky = made.add(request)
    made.run()
    assert len(made.tokens(lucky)) == 8


def test_what_a_failed_step_held_is_let_go() -> None:
    """Red when the error that requests keep also keeps the tensors of the frames it came through."""

    class Held:
        alive = 0

        def __init__(self) -> None:
            Held.alive += 1

        def __del__(self) -> None:
            Held.alive -= 1

    def fail() -> None:
        tensor = Held()
        raise torch.OutOfMemoryError(str(tensor))

    try:
        fail()
    except torch.OutOfMemoryError as error:
        told = recover(error)
        assert Held.alive == 0
    other = ValueError("as it was")
    assert recover(other) is other and isinstance(told, OutOfMemoryError)
