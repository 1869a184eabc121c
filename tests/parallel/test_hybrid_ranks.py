"""Gated delta nets over ranks: each has the states of its own heads, and snapshots of those. Hits, preemption and video."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from clips import make_clip
from engine.harness import loaded, plain_answer, small_picture
from engine.test_hybrid import GRID, continued, text_of
from parallel.checkpoints import many_heads
from parallel.test_tensor_parallel import started
from sightline.errors import ConfigError
from sightline.models.load import empty_model
from sightline.models.registry import family_named, read_model_spec
from sightline.models.sharding import shard_model
from sightline.models.weights.expressions import Share
from sightline.types import Request

FAMILIES = ("qwen3.5", "qwen3.5-moe")
CASES = list(product(FAMILIES, (2, 3, 4)))
ANSWER = 6


def about_clip(folder: Path) -> Request:
    content = [{"type": "text", "text": "See "}, {"type": "video", "video": make_clip(8)}, {"type": "text", "text": "?"}]
    return loaded(folder).prompts.chat([{"role": "user", "content": [*content, {"type": "image", "image": small_picture(4)}]}])


@pytest.mark.slow
@pytest.mark.parametrize(("family", "ranks"), CASES)
def test_hits_preemption_and_video(tmp_path: Path, family: str, ranks: int) -> None:
    """Red when a rank has another head's state or convolution, goes on from another snapshot than the others, or keeps what a
    preempted sequence left in its slot."""
    folder = many_heads(tmp_path / "model", family)
    spec = loaded(folder).spec
    state = max(shard_model(spec, rank, ranks).spec.text.state_bytes(4) for rank in range(ranks))
    token = max(shard_model(spec, rank, ranks).spec.text.token_bytes(4) for rank in range(ranks))
    longest = 480  # tokens: two of the requests below at once
    settings = {"kv_cache_gb": longest * token / 1024**3, "state_cache_gb": 6.5 * state / 1024**3, "page_size": 16}
    run = started(folder, ranks, longest=longest - 16, max_num_batched_tokens=96, vision_parallel="sequence", **settings)
    try:
        assert run.engine.schedule.states is not None
        first = text_of(folder, 200)
        numbers = [run.add(first, ANSWER)]
        run.run()
        again = continued(first, list(range(97, 117)))
        numbers.append(run.add(again, ANSWER))
        run.run()
        assert run.completions[numbers[1], 0].cached_tokens >= 2 * GRID
        requests = [text_of(folder, 180, seed) for seed in range(1, 5)] + [about_clip(folder)]
        numbers += [run.add(request, ANSWER + 20) for request in requests]
        run.run()
        assert not run.errors and run.engine.schedule.preemptions > 0
        asked = [first, again, *requests]
        counts = [ANSWER, ANSWER, *[ANSWER + 20] * len(requests)]
        for number, request, count in zip(numbers, asked, counts, strict=True):
            assert run.tokens(number) == plain_answer(folder, request, count), number
    finally:
        run.engine.close()


@pytest.mark.parametrize(("family", "ranks"), CASES)
def test_shares_cover_every_head_once(tmp_path: Path, family: str, ranks: int) -> None:
    """Of what is split by value heads; queries and keys may be with several. Red when a head is left out, or is with another
    key than it has in the whole."""
    folder = many_heads(tmp_path / "model", family, weights=False)
    spec = read_model_spec(folder)
    net = spec.text.layers[0].mixer
    group = net.value_heads // net.key_heads
    table = family_named(family).weight_table(spec)
    covered: list[int] = []
    for rank in range(ranks):
        shard = shard_model(spec, rank, ranks)
        own = shard.spec.text.layers[0].mixer
        assert own.value_heads % own.key_heads == 0 and own.cache.tensors[0].shape[0] == own.value_heads
        assert own.cache.tensors[1].shape[1] == own.channels
        heads = indices(shard.shares["text.layers.0.mixer.a_log"])
        keys = indices(shard.shares["text.layers.0.mixer.conv"])[: own.keys : net.key_dim] // net.key_dim
        served = np.repeat(keys, own.value_heads // own.key_heads)
        assert (served == heads // group).all()
        covered += heads.tolist()
        parameters = dict(empty_model(spec, shard).named_parameters())
        for name, share in shard.shares.items():
            assert share.of(table[name]).shape == parameters[name].shape, name
    assert covered == list(range(net.value_heads))


def indices(share: Share) -> np.ndarray:
    return np.concatenate([np.arange(start, start + length) for start, length in share.spans])


def test_too_many_ranks_are_refused_by_name(tmp_path: Path) -> None:
    folder = many_heads(tmp_path / "model", "qwen3.5", {"text_config": {"num_attention_heads": 8}}, weights=False)
    with pytest.raises(ConfigError, match="tensor_parallel_size is 5, but the model has only 4 value heads of a gated delta"):
        shard_model(read_model_spec(folder), 0, 5)


def test_dummy_weights_of_ranks(tmp_path: Path) -> None:
    """Random weights have the shapes of a rank's share, too, rates in float32."""
    from sightline.models.load import dummy_model

    spec = read_model_spec(many_heads(tmp_path / "model", "qwen3.5", weights=False))
    for rank in range(2):
        model = dummy_model(spec, torch.device("cpu"), torch.bfloat16, 64, shard=shard_model(spec, rank, 2))
        net = model.text.layers[0].mixer
        assert net.a_log.dtype == torch.float32 and len(net.a_log) == net.spec.value_heads < 6
