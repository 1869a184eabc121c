"""The memory plan: what is left for pages, what one that does not fit says, and that nothing goes beyond what was planned."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import FAMILIES, IN_VIEWS
from engine.harness import driver, loaded, request_of, small_picture
from sightline.config import EngineConfig
from sightline.encoder.graphs import MOST_PATCHES
from sightline.encoder.graphs import buckets as tower_buckets
from sightline.encoder.patches import GROUP_BYTES
from sightline.engine.process import failure_of
from sightline.errors import ConfigError, OutOfMemoryError
from sightline.models.create import create_checkpoint
from sightline.models.families.qwen3_5.spec import DeltaNetSpec
from sightline.models.memory_outlook import outlook
from sightline.models.registry import read_model_spec
from sightline.models.tower_batch import square_grid
from sightline.ops.attention import paged_attention
from sightline.ops.dispatch import Implementation
from sightline.ops.pages import gathered_bytes, most_gathered
from sightline.server.errors import failed
from sightline.spec import Fp8Spec, LayerSpec
from sightline.types import VideoHeader
from sightline.worker.activation_peak import (
    GraphSizes,
    Peaks,
    decoder_bytes,
    fewer_pixels,
    graph_sizes,
    largest_item,
    pixel_bytes,
)
from sightline.worker.memory import MARGIN_BYTES, DeviceMemory, MemoryPlan, check_limits, plan_memory, plan_on_cpu, plan_on_gpu
from sightline.worker.out_of_memory import recover
from sightline.worker.profile_run import chunk_lengths, profile_language, profile_sampling, profile_tower
from sightline.worker.step_graphs import buckets

GB = 1024**3
PEAKS = Peaks(language=2 * GB, sampling=GB // 2, tower=2 * GB, pixels=GB // 2, graphs=GB // 4)
DEVICE = DeviceMemory(total=80 * GB, taken=20 * GB, others=GB)


@pytest.fixture(scope="module")
def spec(tiny_checkpoints: dict[str, Path]) -> Any:
    """Keys and values of 147,456 bytes per token in bfloat16, as Qwen3-VL-8B has, and rows of 32 KiB."""
    tiny = loaded(tiny_checkpoints["qwen3-vl"]).spec
    attention = dataclasses.replace(tiny.text.attention, num_kv_heads=8, head_dim=128)
    text = dataclasses.replace(tiny.text, layers=(LayerSpec(attention, tiny.text.gated_mlp),) * 36)
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


def test_states_have_their_share(spec: Any) -> None:
    """Qwen3.5-27B's layers. Red when the plan forgets states of running sequences, the scratch one or snapshots, or a refusal
    does not say what they take, or recommends what would not fit."""
    net = DeltaNetSpec(16, 48, 128, 128, conv_width=4, norm_eps=1e-6, output_gate="silu")
    few, many = (LayerSpec(mixer, spec.text.gated_mlp) for mixer in (spec.text.attention, net))
    hybrid = dataclasses.replace(spec, text=dataclasses.replace(spec.text, layers=(many, many, many, few) * 16))
    state = 48 * (48 * 128 * 128 * 4 + 3 * 10240 * 2)
    device = DeviceMemory(total=140 * GB, taken=40 * GB, others=GB)
    made, less = plan(hybrid, device=device), plan(hybrid, device=device, max_num_seqs=64, state_cache_gb=20.0)
    assert (made.state_bytes, made.state_slots) == (state, 256 + 1 + 8 * GB // state)
    assert less.state_slots == 64 + 1 + 20 * GB // state
    assert abs(less.kv_bytes - made.kv_bytes - (made.state_slots - less.state_slots) * state) <= made.page_bytes
    device = DeviceMemory(total=115 * GB, taken=40 * GB, others=GB)
    found = advice(hybrid, longest=262_144, device=device)
    for name, kind in (("state_cache_gb", float), ("max_num_seqs", int)):
        assert plan(hybrid, longest=262_144, device=device, **{name: kind(found[name])}).pages
    with pytest.raises(ConfigError, match=r"44\.7 by states"):
        plan(hybrid, longest=262_144, device=device)


def test_glm_4_6v_in_8_bits_on_one_h200(tmp_path: Path) -> None:
    """Its weights leave little: by default the longest sequence does not fit, and what would make it fit is named."""
    create_checkpoint(tmp_path / "glm", "glm-4.6v", "108b-a12b", weights=False)
    glm = dataclasses.replace(read_model_spec(tmp_path / "glm"), fp8=Fp8Spec("channel", "_scale", True))
    h200 = DeviceMemory(total=int(139.8 * GB), taken=outlook(glm, 1).weights + 2 * GB, others=GB)
    assert 65_536 <= advice(glm, longest=131_072, device=h200)["max_model_len"] < 131_072
    with pytest.raises(ConfigError, match=r"with gpu_memory_utilization 0\.95 (\d+) fit") as caught:
        plan(glm, 131_072, h200)
    longest = int(str(caught.value).split("gpu_memory_utilization 0.95 ")[1].split()[0])
    assert longest >= 100_000
    for tokens in (65_536, longest):
        assert plan(glm, tokens, h200, gpu_memory_utilization=0.95).pages * 16 >= 100_000


def test_a_gpu_that_is_far_too_small_gets_no_advice(spec: Any) -> None:
    with pytest.raises(ConfigError, match="the GPU is too small for this model"):
        plan(spec, device=DeviceMemory(total=16 * GB, taken=int(15.9 * GB), others=0), longest=262_144)


def test_a_cache_that_was_asked_for_must_fit(spec: Any) -> None:
    assert plan(spec, kv_cache_gb=20.0).pages == 20 * GB // (16 * 147_456)
    found = advice(spec, kv_cache_gb=60.0)
    assert plan(spec, kv_cache_gb=found["kv_cache_gb"]).pages
    with pytest.raises(ConfigError, match=r"kv_cache_gb is 1.0, room for \d+ tokens, but a sequence may have 32768; raise"):
        plan(spec, kv_cache_gb=1.0)


def test_no_cache_of_embeddings_has_their_usual_memory(spec: Any) -> None:
    """Red when 0 is refused, or leaves running requests without rows; rows on the host would be a cache all the same."""
    usual = plan_on_cpu(EngineConfig(), spec, torch.float32, 1000)
    assert plan_on_cpu(EngineConfig(embedding_cache_gb=0.0), spec, torch.float32, 1000) == usual
    with pytest.raises(ConfigError, match="too little for"):
        plan_on_cpu(EngineConfig(embedding_cache_gb=1e-6), spec, torch.float32, 1000)
    with pytest.raises(ConfigError, match=r"embedding_host_cache_gb is 1.0, but embedding_cache_gb is 0"):
        check_limits(EngineConfig(embedding_cache_gb=0.0, embedding_host_cache_gb=1.0))


def test_a_cpu_has_room_for_one_sequence_whatever_its_length(spec: Any) -> None:
    assert plan_on_cpu(EngineConfig(), spec, torch.float32, 100_000).pages == 100_000 // 16 + 1
    with pytest.raises(ConfigError, match=r"raise kv_cache_gb to 27\.471"):
        plan_on_cpu(EngineConfig(kv_cache_gb=0.5), spec, torch.float32, 100_000)


@pytest.mark.parametrize("patches", [63, 8193])
def test_graphs_of_the_tower_have_a_largest_size(patches: int) -> None:
    with pytest.raises(ConfigError, match=f"max_tower_graph_patches is {patches}, but must be from 64 to 8192"):
        check_limits(EngineConfig(max_tower_graph_patches=patches))


@pytest.mark.parametrize("share", [0.0, 1.5])
def test_utilization_is_a_share(tiny_checkpoints: dict[str, Path], share: float) -> None:
    with pytest.raises(ConfigError, match="gpu_memory_utilization is"):
        driver(tiny_checkpoints["qwen3-vl"], gpu_memory_utilization=share)


def test_every_graph_that_an_engine_records_is_counted(spec: Any) -> None:
    """Red when the engine captures graphs that the plan does not know of."""
    config = EngineConfig(max_num_seqs=64, max_num_batched_tokens=8192)
    sizes = graph_sizes(config, spec.vision, steps=True)
    steps, towers = buckets(64, 8192), tower_buckets(spec.vision)
    assert sizes.step_tokens == max(bucket.tokens for bucket in steps)
    assert sizes.step_graphs == len(steps) and sizes.step_logits == sum(bucket.sequences for bucket in steps)
    assert sizes.tower_patches == MOST_PATCHES == towers[-1].patches and sizes.tower_graphs == len(towers)
    assert sizes.tower_rows == MOST_PATCHES // 4
    assert graph_sizes(config, None, steps=False) == GraphSizes()
    fewer = graph_sizes(dataclasses.replace(config, max_tower_graph_patches=1100), spec.vision, steps=False)
    assert fewer.tower_patches == 1088 and fewer.tower_graphs == len(tower_buckets(spec.vision, 1088)) < len(towers)
    assert fewer.tower_rows == 1088 // 4


# ---- Profile runs


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


@pytest.mark.parametrize("family", (*FAMILIES, *IN_VIEWS))
def test_profile_runs_on_every_family(tiny_checkpoints: dict[str, Path], family: str) -> None:
    llm = loaded(tiny_checkpoints[family])
    layers = list(llm.model.text.layers)
    logits = profile_language(llm.model, tokens=40, sequences=8, longest=100, page_size=16, workspace=None)
    assert logits.shape == (8, llm.spec.text.vocab_size)
    assert list(llm.model.text.layers) == layers
    rows = profile_tower(llm.model, 100)
    assert len(rows) >= 100 // llm.spec.patch_tower.merge_size**2 and rows.shape[1] == llm.spec.vision.embedding_width
    profile_sampling(llm.spec.text.vocab_size, 8, torch.device("cpu"), torch.float32)


@pytest.mark.parametrize("gathers", [True, False])
def test_all_steps_gather_into_one_workspace(
    tiny_checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch, gathers: bool
) -> None:
    """Made at the start, as large as the limits need. Red when the first long prompt takes it, which looks like a leak, when
    steps have others than the one that the plan counts, or when it is taken where attention does not gather."""
    kernel = Implementation("gathers", paged_attention.definition, lambda *_, **__: True, uses_workspace=gathers)
    monkeypatch.setattr(paged_attention, "kernels", [kernel])
    monkeypatch.setattr("sightline.ops.pages.GATHER_FROM", 16)  # a tiny model's sequences are too short otherwise
    folder = tiny_checkpoints["qwen3-vl"]
    loaded(folder)  # which makes a plan of its own
    planned: list[Any] = []

    def plan(*given: Any) -> MemoryPlan:
        planned.append(given[-1])
        return plan_memory(*given)

    monkeypatch.setattr("sightline.worker.build.plan_memory", plan)
    run, used, config = driver(folder), [], EngineConfig()
    worker = run.engine.executor.worker
    hook = worker.model.register_forward_pre_hook(lambda _, given: used.append(given[0].sequences.workspace))
    try:
        run.add(request_of(folder, "A question."))
        run.run()
    finally:
        hook.remove()
    attention, longest = loaded(folder).spec.text.attention, loaded(folder).max_model_len
    rows = most_gathered(config.max_num_batched_tokens, longest, config.max_num_seqs)
    workspace = worker.workspaces.gathered
    assert planned == [worker.workspaces] and len(used) > 5 and all(one is workspace for one in used)
    assert (workspace is not None) == gathers
    size = gathered_bytes(rows, attention.num_kv_heads, attention.head_dim, torch.float32)
    assert size > 0 and worker.workspaces.nbytes == gathers * size


def test_steps_too_small_to_gather_need_no_workspace(
    tiny_checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red when memory is kept for what no step of these limits does."""
    kernel = Implementation("gathers", paged_attention.definition, lambda *_, **__: True, uses_workspace=True)
    monkeypatch.setattr(paged_attention, "kernels", [kernel])
    assert driver(tiny_checkpoints["qwen3-vl"], max_num_batched_tokens=16).engine.executor.worker.workspaces.nbytes == 0


def test_a_profile_run_that_fails_leaves_the_model_whole(tiny_checkpoints: dict[str, Path]) -> None:
    model = loaded(tiny_checkpoints["qwen3-vl"]).model
    layers = list(model.text.layers)
    with pytest.raises(RuntimeError):
        profile_language(model, tokens=4, sequences=2, longest=-5, page_size=16, workspace=None)
    assert list(model.text.layers) == layers


# ---- What a request may bring


def test_the_largest_frame_and_item_of_qwen3(tiny_checkpoints: dict[str, Path]) -> None:
    llm = loaded(tiny_checkpoints["qwen3-vl"])
    image = dataclasses.replace(llm.processor.image, max_pixels=16_777_216, patch_size=16)
    video = dataclasses.replace(llm.processor.video, max_pixels=25_165_824, patch_size=16)
    processor = dataclasses.replace(llm.processor, image=image, video=video)
    assert processor.most_patches_at_once() == 65_536
    # The longest clip that is as narrow as may be: its short side stays at 32 pixels, so that it goes beyond its budget.
    narrow = processor.layout(VideoHeader("mp4", 6400, 32, 10_000, 2.0, 5000.0))
    assert sum(math.prod(grid) for grid in narrow.grids) == 122_880
    assert 122_880 <= largest_item(processor, most_rows=1_000_000) <= 123_000
    assert largest_item(processor, most_rows=1000) == 4000


def test_the_largest_item_of_qwen2_5_is_a_long_clip(tiny_checkpoints: dict[str, Path]) -> None:
    processor = loaded(tiny_checkpoints["qwen2.5-vl"]).processor
    video = dataclasses.replace(processor.video, max_pixels=602_112, patch_size=14)
    long = dataclasses.replace(processor, video=video, max_frames=768)
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


@pytest.mark.parametrize("family", (*FAMILIES, *IN_VIEWS))
def test_items_above_the_budget_go_through_the_tower_in_pieces(tiny_checkpoints: dict[str, Path], family: str) -> None:
    """A clip of 6 frames of 24 patches with a budget of 60: three runs, and the rows of one."""
    llm = loaded(tiny_checkpoints[family])
    whole, pieces = (
        driver(tiny_checkpoints[family], max_patches_per_step=most).engine.executor.worker.encodes for most in (65_536, 60)
    )
    sizes: list[int] = []
    run = pieces._run_piece
    pieces._run_piece = lambda parts, grids: sizes.append(sum(map(len, parts))) or run(parts, grids)  # type: ignore
    item = request_of(tiny_checkpoints[family], small_picture(1)).items[0]
    clip = dataclasses.replace(item, grids=((6, 4, 6),))
    width = llm.model.vision.patch_width
    patches = torch.from_numpy(np.random.default_rng(0).normal(size=(144, width)).astype(np.float32))
    expected = whole.encode_patches([clip], [patches])
    found = pieces.encode_patches([clip], [patches])
    assert sizes == [48, 48, 48]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


# ---- In spite of it all


def test_running_out_of_memory_costs_a_step_and_nothing_else(tiny_checkpoints: dict[str, Path]) -> None:
    made = driver(tiny_checkpoints["qwen3-vl"])
    compute, left = made.engine.executor.worker._forward, [1]

    def once(*arguments: Any) -> Any:
        if left:
            left.pop()
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return compute(*arguments)

    made.engine.executor.worker._forward = once  # type: ignore[method-assign]
    request = request_of(tiny_checkpoints["qwen3-vl"], "Hello")
    failed = made.add(request)
    made.run()
    assert isinstance(made.errors[failed], OutOfMemoryError)
    assert str(made.errors[failed]).startswith("The GPU ran out of memory in the step that computed this request;")
    retried = made.add(request)
    made.run()
    assert len(made.tokens(retried)) == 8


@pytest.mark.parametrize("allocate", [lambda: torch.empty(1 << 55, dtype=torch.uint8), lambda: bytearray(1 << 55)])
def test_running_out_of_the_hosts_memory_is_nobodys_fault(
    tiny_checkpoints: dict[str, Path], allocate: Callable[[], Any]
) -> None:
    """In a step and in the tower. Red when what torch's allocator of the CPU says is an error of ours, a 500."""
    made = driver(tiny_checkpoints["qwen3-vl"])
    worker = made.engine.executor.worker
    for number, (owner, name) in enumerate(((worker, "_forward"), (worker.encodes, "_run_tower"))):
        compute = getattr(owner, name)
        setattr(owner, name, lambda *arguments: allocate())
        sequence = made.add(request_of(tiny_checkpoints["qwen3-vl"], small_picture(number), "What?"))
        made.run()
        setattr(owner, name, compute)
        error = failed(failure_of(made.errors[sequence]))
        assert (error.status, error.code) == (503, "out_of_memory") and "not enough memory" in error.message, error.message
    retried = made.add(request_of(tiny_checkpoints["qwen3-vl"], small_picture(3), "What?"))
    made.run()
    assert len(made.tokens(retried)) == 8


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
