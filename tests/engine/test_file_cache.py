"""Files that both processes know of are sent once; the engine has whatever it is not sent, come what may."""

import hashlib
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from prompt.builders import image_item
from sightline.engine.file_cache import FileCache, FileCacheIndex
from sightline.engine.messages import Add, add_frames, decode_command, submission_of
from sightline.sampling_params import resolve_sampling
from sightline.submission import Submission
from sightline.types import MediaItem, Request, SamplingParams

SAMPLING = resolve_sampling(SamplingParams(max_tokens=1), {})


def item_of(data: bytes) -> MediaItem:
    item = image_item(1, 1)
    return replace(item, ref=replace(item.ref, data=data, digest=hashlib.sha256(data).digest()))


def named(data: bytes) -> MediaItem:
    """As of a file that was seen before: its digest, without its bytes."""
    item = item_of(data)
    return replace(item, ref=replace(item.ref, data=b""))


def request_with(*files: bytes | MediaItem) -> Request:
    items = tuple(item_of(file) if isinstance(file, bytes) else file for file in files)
    return Request(np.zeros(1, np.int32), np.zeros((3, 1), np.int32), 0, items, ())


def sent_over(file_index: FileCacheIndex, files: FileCache, request: Request) -> tuple[Request, int]:
    """The request at the other end, and how many bytes of files were sent for it."""
    frames = add_frames(file_index, 1, Submission(request, SAMPLING))
    add = decode_command(*(memoryview(frame) for frame in frames))
    assert isinstance(add, Add)
    return submission_of(add, files).request, sum(len(data) for data in frames[3:])  # behind header, token ids and positions


def test_a_conversation_sends_each_file_once() -> None:
    file_index, files = FileCacheIndex(1000), FileCache(1000)
    pictures = [bytes([number]) * 50 for number in range(8)]
    for rounds in range(1, 9):
        got, sent = sent_over(file_index, files, request_with(*pictures[:rounds]))
        assert [item.ref.data for item in got.items] == pictures[:rounds] and sent == 50
    file_index.clear()
    files.clear()
    assert sent_over(file_index, files, request_with(pictures[0]))[1] == 50


def test_a_file_that_is_named_without_its_bytes() -> None:
    """Red when the name takes the place of the file, which is then not sent again, or changes what only one end knows of."""
    file_index, files = FileCacheIndex(200), FileCache(200)
    old, new = b"o" * 50, b"n" * 50
    assert sent_over(file_index, files, request_with(named(old)))[0].items[0].ref.data == b""
    sent_over(file_index, files, request_with(old, new))
    assert sent_over(file_index, files, request_with(named(old)))[0].items[0].ref.data == old
    got, sent = sent_over(file_index, files, request_with(old))
    assert got.items[0].ref.data == old and sent == 0
    sent_over(
        file_index, files, request_with(new, named(old), b"1" * 50, b"2" * 50, b"3" * 50)
    )  # the oldest goes: not the named one
    for file in (new, b"1" * 50, b"2" * 50, b"3" * 50):
        assert sent_over(file_index, files, request_with(file))[0].items[0].ref.data == file


@pytest.mark.parametrize("bound", [0, 100, 1000, 10**9])
@pytest.mark.parametrize("seed", range(5))
def test_both_ends_agree_whatever_is_sent(bound: int, seed: int) -> None:
    """Red when one end forgets a file that the other counts on, or when more is kept than allowed. Files of many sizes, some
    twice in a request, some too large, some named without their bytes; one end may forget more than the other."""
    random = Random(seed)
    file_index, files = FileCacheIndex(bound), FileCache(bound)
    pictures = [random.randbytes(random.choice((10, 10, 10, 30, 80, 240, 600))) for _ in range(25)] + [b""]
    seen = 0
    for _ in range(400):
        chosen = random.choices(pictures, k=random.randint(1, 6))
        whole = [random.random() < 0.8 for _ in chosen]
        items = [data if complete else named(data) for data, complete in zip(chosen, whole, strict=True)]
        got, sent = sent_over(file_index, files, request_with(*items))
        for item, data, complete in zip(got.items, chosen, whole, strict=True):
            assert item.ref.data == data or (not complete and item.ref.data == b"")
        seen += sum(len(data) for data, complete in zip(chosen, whole, strict=True) if complete) - sent
        assert sum(map(len, files._files.values())) <= bound
        if random.random() < 0.03:
            file_index.clear()  # a message that could not be written
        if random.random() < 0.03:
            file_index.clear()
            files.clear()
    assert (seen > 0) == (bound > 0)


@pytest.mark.parametrize("bound", [0, 1000])
def test_pages_of_a_file_are_sent_as_one(bound: int) -> None:
    """Red if a PDF of many pages is sent with each of them, or a page has not its bytes."""
    file_index, files = FileCacheIndex(bound), FileCache(bound)
    file, picture = b"p" * 100, b"x" * 30

    def page(number: int, data: bytes = file) -> MediaItem:
        item = item_of(bytes([number]))
        return replace(item, ref=replace(item.ref, data=data, file_digest=hashlib.sha256(file).digest()))

    for first in (130, 0 if bound else 130):
        got, sent = sent_over(file_index, files, request_with(page(1), picture, page(2), page(3)))
        assert [item.ref.data for item in got.items] == [file, picture, file, file] and sent == first
        assert got.items[0].ref.data is got.items[2].ref.data
    got, sent = sent_over(file_index, files, request_with(page(4, b""), page(5), page(6)))
    assert [item.ref.data for item in got.items[1:]] == [file, file]
    assert got.items[0].ref.data == (file if bound else b"")


def test_a_message_that_cannot_be_written_leaves_no_trace() -> None:
    """Red when the index counts on a file that was never sent."""
    file_index, files = FileCacheIndex(1000), FileCache(1000)
    request = request_with(b"picture")
    with pytest.raises(TypeError):
        add_frames(file_index, 1, Submission(replace(request, position_delta=object()), SAMPLING))  # type: ignore[arg-type]
    assert sent_over(file_index, files, request)[0].items[0].ref.data == b"picture"
