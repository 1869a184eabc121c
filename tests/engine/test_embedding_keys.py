"""Embeddings and pages go by the decoder that made the pixels, also when the GPU fails on a file and the CPU decodes it."""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from encoder.jpegs import CPU, ask, jpeg, soft
from media.pictures import encoded
from parity.subject import Subject
from sightline import LLM, SamplingParams
from sightline.cache.keys import embedding_key
from sightline.encoder.gpu_decode import GpuDecoder
from sightline.schedule.state import ScheduledEncode
from sightline.types import MediaItem
from sightline.worker import build

SAMPLING = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
GPU = "negative 1.0"


class Negative:
    """A decoder for GPUs whose pixels nobody can mistake for Pillow's. It fails on the files in `refused`."""

    name = GPU

    def __init__(self) -> None:
        self.calls, self.refused = 0, set[bytes]()

    def decode(self, files: Sequence[bytes], into: Sequence[torch.Tensor]) -> list[bool]:
        self.calls += 1
        for data, target in zip(files, into, strict=True):
            target.copy_(255 - torch.from_numpy(np.array(Image.open(io.BytesIO(data)))))
        return [data not in self.refused for data in files]

    def close(self) -> None:
        pass


@pytest.fixture
def library() -> Negative:
    return Negative()


@pytest.fixture
def plain(tiny_checkpoints: dict[str, Path]) -> Iterator[LLM]:
    """Without a decoder on the GPU; made first, before there is one."""
    with LLM(tiny_checkpoints["qwen3-vl"], device="cpu") as made:
        yield made


@pytest.fixture
def llm(plain: LLM, library: Negative, tiny_checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[LLM]:
    monkeypatch.setattr(build, "choose_gpu_decoder", lambda *_: GpuDecoder(library, CPU))
    with LLM(tiny_checkpoints["qwen3-vl"], device="cpu") as made:
        yield made


def items(llm: LLM, *images: bytes) -> tuple[MediaItem, ...]:
    return Subject.request_of(llm, ask(*images)).items


def rows(llm: LLM, item: MediaItem, decoder: str) -> torch.Tensor | None:
    """The embeddings that are cached under the item's key with this decoder."""
    cache = llm.engine.schedule.embeddings
    entry = cache.lookup(embedding_key(item.key, decoder))
    if entry is None:
        return None
    return llm.engine.executor.worker.arena.rows[torch.from_numpy(cache.row_slots(entry, 0, entry.rows))].clone()


def test_a_key_names_the_decoder_that_made_the_pixels(library: Negative, llm: LLM, plain: LLM) -> None:
    """Red when a file that the CPU decodes is kept under the name of the GPU's decoder, because the engine has one or because
    it failed on the file, or when the answer is not that of the pixels that were named."""
    taken, refused, png = jpeg(80, 120, 1), jpeg(80, 120, 2), encoded(soft(64, 64, 3), "PNG")
    library.refused.add(refused)
    llm.chat(ask(taken, refused, png), SAMPLING)
    plain.chat(ask(taken, refused, png), SAMPLING)
    for item, decoder in zip(items(llm, taken, refused, png), (GPU, "cpu", "cpu"), strict=True):
        found, expected = rows(llm, item, decoder), rows(plain, item, "cpu")
        assert found is not None and expected is not None
        assert torch.equal(found, expected) == (decoder == "cpu")
        assert rows(llm, item, "cpu" if decoder == GPU else GPU) is None
    calls = library.calls
    assert llm.chat(ask(refused), SAMPLING).token_ids == plain.chat(ask(refused), SAMPLING).token_ids
    assert library.calls == calls and llm.engine.counts.encoded == 3  # what was decoded by the CPU is found again


def test_pages_of_one_decoder_are_not_those_of_another(library: Negative, llm: LLM, plain: LLM) -> None:
    """A file that the GPU decodes at first and fails on later. Red when page keys do not say which decoder it was: then the
    second answer follows from keys and values of the first one's pixels."""
    image = jpeg(256, 384, 5)
    first = llm.chat(ask(image), SAMPLING)
    assert llm.chat(ask(image), SAMPLING).cached_tokens > first.cached_tokens
    (item,) = items(llm, image)
    library.refused.add(image)
    llm.engine.schedule.embeddings.clear()
    other = [{"role": "system", "content": "Be brief."}, *ask(image)]
    assert llm.chat(other, SAMPLING).token_ids == plain.chat(other, SAMPLING).token_ids
    assert rows(llm, item, GPU) is None and rows(llm, item, "cpu") is not None
    again = llm.chat(ask(image), SAMPLING)
    assert again.token_ids == plain.chat(ask(image), SAMPLING).token_ids
    assert again.cached_tokens <= Subject.request_of(llm, ask(image)).spans[0].start


def test_a_file_without_bytes_has_the_key_of_those_it_had(llm: LLM) -> None:
    """Red when embeddings of the GPU's decoder are not found by a request that names the file by its digest alone."""
    (item,) = items(llm, jpeg(80, 120, 1))
    llm.chat(ask(jpeg(80, 120, 1)), SAMPLING)
    key = llm.engine.encoder.embedding_key(item)
    assert key == llm.engine.encoder.embedding_key(item.without_bytes()) == embedding_key(item.key, GPU)
    assert rows(llm, item, GPU) is not None


def test_a_key_that_was_given_too_early_is_set_right(llm: LLM) -> None:
    """A request that names a file by its digest may come before one that has its bytes, when nobody knows which decoder takes
    it. Red when the embeddings are kept under the key that it was given."""
    request = Subject.request_of(llm, ask(jpeg(80, 120, 1)))
    engine, (item,) = llm.engine, request.items
    unseen = embedding_key(item.key, "cpu")
    assert engine.encoder.embedding_key(item.without_bytes()) == unseen
    engine.encoder.hold([item])
    reserved = engine.schedule.embeddings.reserve(unseen, item.rows)
    engine.encoder.submit([ScheduledEncode(reserved.entry, item.without_bytes(), reserved.offloads, from_host=False)])
    (result,) = engine.encoder.poll()
    assert result.again == (unseen,) and result.renamed == {unseen: embedding_key(item.key, GPU)} and not result.ready
    engine.schedule.embeddings.abandon(reserved.entry)
