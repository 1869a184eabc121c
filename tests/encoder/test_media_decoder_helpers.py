"""Items that helper processes decode: the same pixels and sentences, and nothing that is left behind."""

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from PIL import Image

import file_patches
from encoder.decoding_items import PATIENCE_S, opened, wait_until_decoded
from encoder.jpegs import IMAGE, PROCESSOR, VIDEO, item, jpeg, soft, without_codes
from family_processors import make_processor
from media.pictures import encoded, picture, video
from sightline.config import MediaConfig
from sightline.encoder.decoding import decoder as decoding
from sightline.encoder.decoding import helper as helper_module
from sightline.encoder.decoding.cancellation import Cancellation
from sightline.encoder.decoding.decoder import MediaDecoder
from sightline.encoder.decoding.helper import Helper
from sightline.encoder.decoding.helper_pool import HelperPool
from sightline.encoder.decoding.messages import Decoded, Message
from sightline.encoder.decoding.pixels import PixelState
from sightline.encoder.patches import make_patches
from sightline.errors import HostMemoryError, MediaError
from sightline.media.decode import decode_image, decode_video
from sightline.media.decoder_errors import DecodeCancelled
from sightline.media.item import item_of
from sightline.media.source import load_image, load_video
from sightline.types import MediaItem

MEMORY = 1 << 30
CPU = torch.device("cpu")
SMALL = make_processor("qwen3-vl", replace(IMAGE, max_pixels=20_000), replace(VIDEO, max_pixels=16_384))
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@pytest.fixture(autouse=True)
def all_in_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "is_cheap", lambda item: False)


def slow_item() -> MediaItem:
    """A legal file that decodes for seconds: 196 scans of 16 megapixels."""
    data = encoded(Image.new("L", (4096, 4096), 99), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    ref = load_image(data[:-2] + data[last:-2] * 190 + data[-2:], MediaConfig(max_image_decode_mpx=10_000))
    assert ref.header.scans == 196
    return item_of(ref, PROCESSOR)


def children() -> list[int]:
    """Helpers of this process."""
    found = [int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()]
    return [pid for pid in found if is_helper(pid)]


def is_helper(pid: int) -> bool:
    try:
        return b"sightline.encoder.decoding.process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # gone meanwhile
        return False


def descriptors() -> list[str]:
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


def has_pixels(pid: int | str) -> bool:
    """Whether a process has shared memory of ours."""
    try:
        return "sightline-pixels" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:  # gone meanwhile
        return False


def ended(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or ") Z " in stat.read_text()


def wait_for_decoding() -> int:
    """Until the only helper is at work; its process."""
    wait_for(lambda: [pid for pid in children() if has_pixels(pid)])
    (pid,) = children()
    return pid


def wait_for(condition) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


# Red if pixels from a helper, resized there or not, differ in one bit from those that are decoded and resized here.
def test_pixels_and_patches_are_those_of_this_process() -> None:
    clip = load_video(video(9, height=120, width=160), MediaConfig())
    stills = [
        item_of(load_image(data, MediaConfig()), processor)
        for processor in (PROCESSOR, SMALL)  # the second makes them smaller
        for data in (
            jpeg(300, 200, 1, orientation=6),
            encoded(soft(170, 410, 2), "PNG"),
            encoded(picture("RGBA", 500, 90), "PNG"),
            encoded(picture("P", 200, 200), "PNG"),
            jpeg(401, 203, 4, mode="CMYK", progressive=True),
        )
    ]
    clips = [item_of(clip, PROCESSOR), item_of(clip, SMALL)]
    shrunk = 0
    with opened(4, MEMORY) as decoder:
        decoder.want([*stills, *clips])
        assert set(wait_until_decoded(decoder, *stills, *clips)) == {PixelState.READY}
        for one in [*stills, *clips]:
            spec = SMALL.image if one.ref.kind == "image" else VIDEO
            frames = decoder.take(one).frames
            if frames.shape[1:3] == (one.ref.header.height, one.ref.header.width):
                source = decode_video(one.ref, one.frame_indices) if one.frame_indices else decode_image(one.ref)[None]
                assert np.array_equal(frames, source)
            else:
                assert frames.shape[1:3] == one.resized
                shrunk += 1
            made = make_patches(frames, one, spec, CPU, torch.float32)
            assert torch.equal(made, file_patches.make_patches(one, spec, CPU, torch.float32))
    assert 6 <= shrunk < len(stills) + len(clips)


# Red if a broken file has another sentence in a helper than here.
def test_broken_files_have_the_same_sentences() -> None:
    files = [without_codes(jpeg(96, 96, 8)), jpeg(80, 120, 6)[:-400], encoded(soft(64, 64), "PNG")[:-300]]
    items = [item(data) for data in files]
    promising = load_video(video(5), MediaConfig())
    promising = replace(promising, header=msgspec.structs.replace(promising.header, frame_count=9))
    items.append(replace(item_of(promising, PROCESSOR), frame_indices=(0, 8)))
    with opened(4, MEMORY) as decoder:
        decoder.want(items)
        assert set(wait_until_decoded(decoder, *items)) == {PixelState.FAILED}
        for one in items:
            with pytest.raises(MediaError) as here:
                decode_image(one.ref) if one.ref.kind == "image" else decode_video(one.ref, one.frame_indices)
            with pytest.raises(MediaError) as there:
                decoder.take(one)
            assert str(there.value) == str(here.value)


# Red if a process that is killed fails more than its item, or fails it without a word.
@LINUX
def test_a_helper_that_is_killed_fails_its_item_alone() -> None:
    slow, good = slow_item(), item(jpeg(seed=3))
    with opened(4, MEMORY) as decoder:
        decoder.want([slow])
        os.kill(wait_for_decoding(), signal.SIGKILL)
        assert wait_until_decoded(decoder, slow) == [PixelState.FAILED]
        sentence = "Image <bytes> cannot be decoded now: the process that decoded it was killed."
        assert [str(error) for _, error in decoder.failed()] == [sentence]
        decoder.want([good])
        assert wait_until_decoded(decoder, good) == [PixelState.READY]
        (idle,) = children()
        os.kill(idle, signal.SIGKILL)
        wait_for(lambda: ended(idle))
        again = item(jpeg(seed=4))
        decoder.want([again])
        assert wait_until_decoded(decoder, again) == [PixelState.READY]


# Red if a decode goes on that nobody wants any more, or its memory counts on.
@LINUX
def test_cancelling_kills_the_process() -> None:
    slow, good = slow_item(), item(jpeg(seed=3))
    with opened(4, MEMORY) as decoder:
        decoder.want([slow])
        first = wait_for_decoding()
        decoder.want([good])
        assert wait_until_decoded(decoder, good) == [PixelState.READY]
        assert first not in children()
        assert decoder.bytes_in_flight == decoder.take(good).frames.nbytes
        assert decoder.failed() == []


# Red if a process that was killed in the moment of its reply is given the next item, which would fail for nothing.
def test_cancelling_in_the_moment_of_the_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    helper, cancellation, one = Helper(), Cancellation(), item(jpeg(seed=8))
    receive = helper_module.receive_reply

    def receive_and_cancel(channel: socket.socket) -> Message:
        reply = receive(channel)
        if isinstance(reply, Decoded):
            cancellation.request()
        return reply

    try:
        helper.decode(one, MEMORY, Cancellation())
        monkeypatch.setattr(helper_module, "receive_reply", receive_and_cancel)
        with pytest.raises(DecodeCancelled):
            helper.decode(one, MEMORY, cancellation)
        monkeypatch.undo()
        assert helper.decode(one, MEMORY, Cancellation()).frames.any()
        with pytest.raises(DecodeCancelled):
            helper.decode(one, MEMORY, cancellation)
    finally:
        helper.close()


# Red if an item fails because the process it was given to had died before, which was not seen yet.
@LINUX
def test_an_item_outlives_a_helper_that_died_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    helper, one = Helper(), item(jpeg(seed=8))
    try:
        helper.decode(one, MEMORY, Cancellation())
        (idle,) = children()
        os.kill(idle, signal.SIGKILL)
        wait_for(lambda: ended(idle))
        monkeypatch.setattr(helper._process, "poll", lambda: None)
        assert helper.decode(one, MEMORY, Cancellation()).frames.any()
        assert idle not in children()
    finally:
        helper.close()


# Red if the time that a process takes to start counts as the item's: on a busy machine good pages would be refused.
def test_a_limit_on_time_begins_when_the_helper_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper_module, "COMMAND", ("/bin/sh", "-c", 'sleep 4; exec "$0" "$@"', *helper_module.COMMAND))
    helper = Helper()
    try:
        assert helper.decode(item(jpeg(seed=8)), MEMORY, Cancellation(), limit_s=3.9).frames.any()
    finally:
        helper.close()


# Red if a helper whose engine is killed while it starts writes a traceback into the log.
def test_a_helper_whose_engine_is_gone_ends_without_a_word() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        ours.close()
        done = subprocess.run(helper_module.COMMAND, stdin=theirs.fileno(), capture_output=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr


# Red if a decoder may take all memory of the machine, or an item that does takes the next one with it.
@LINUX
def test_memory_of_a_helper_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    helper = Helper()
    large = item(encoded(soft(1000, 1000), "PNG"))
    try:
        assert helper.decode(large, 1 << 20, Cancellation()).frames.shape == (1, 992, 992, 3)
        monkeypatch.setattr(helper_module, "_SPARE_BYTES", 0)
        with pytest.raises(MediaError, match=r"^Image <bytes> cannot be .*\.$"):
            helper.decode(large, 1 << 20, Cancellation())
        assert helper.decode(large, 1 << 28, Cancellation()).frames.shape == (1, 992, 992, 3)
    finally:
        helper.close()


# Red if it is called the item's fault, a 400, as where the helper's own limit is reached; or if the helper is gone after it.
@LINUX
@pytest.mark.parametrize("spare", [0, 6 << 20], ids=["nothing", "the result"])
def test_a_machine_that_is_short_of_memory_is_not_the_items_fault(spare: int) -> None:
    helper = Helper()
    large = item(encoded(soft(1000, 1000), "PNG"))
    try:
        helper.decode(large, MEMORY, Cancellation())
        (pid,) = children()
        size = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
        resource.prlimit(pid, resource.RLIMIT_AS, (size + spare, -1))
        with pytest.raises(HostMemoryError, match=r"^Image <bytes> cannot be decoded now: "):
            helper.decode(item(encoded(Image.new("RGB", (5000, 5000)), "PNG")), MEMORY, Cancellation())
        resource.prlimit(pid, resource.RLIMIT_AS, (-1, -1))
        assert helper.decode(large, MEMORY, Cancellation()).frames.any() and children() == [pid]
    finally:
        helper.close()


# Red if processes, descriptors or shared memory are left when the service is closed, whatever it was at.
@LINUX
def test_nothing_is_left_behind() -> None:
    slow, broken, taken, untaken = slow_item(), item(jpeg(80, 120, 6)[:-400]), item(jpeg(seed=5)), item(jpeg(seed=6))
    MediaDecoder(1, MEMORY).close()  # what Python itself opens once
    before = descriptors()
    threads = threading.active_count()
    decoder = MediaDecoder(8, MEMORY)
    decoder.want([taken, broken, untaken, slow])
    wait_until_decoded(decoder, taken, broken, untaken)
    frames = decoder.take(taken).frames
    decoder.close()
    assert not children()
    assert threading.active_count() == threads
    assert has_pixels("self") and frames.any()
    del frames
    assert not has_pixels("self")
    assert descriptors() == before


ORPHAN = """
import os, sys, time
sys.path.insert(0, {tests!r})
from encoder.test_media_decoder_helpers import MEMORY, slow_item, wait_for_decoding
from sightline.encoder.decoding.decoder import MediaDecoder
decoder = MediaDecoder(4, MEMORY)
decoder.want([slow_item()])
print(wait_for_decoding(), flush=True)
time.sleep({patience})
"""


# Red if a helper goes on with a long decode when the engine is gone, or waits for ever for one that never comes.
@LINUX
def test_a_helper_does_not_outlive_its_parent() -> None:
    code = ORPHAN.format(tests=str(Path(__file__).parents[1]), patience=PATIENCE_S)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    wait_for(lambda: ended(pid))


# Red if a process stays when there is nothing to decode.
@LINUX
def test_an_idle_helper_ends() -> None:
    pool = HelperPool(1, idle_s=0.01)
    done = threading.Event()
    one = item(jpeg(seed=7))

    def work(helper: Helper) -> None:
        helper.decode(one, MEMORY, Cancellation())
        done.set()

    for _ in range(2):
        pool.submit(work)
        assert done.wait(PATIENCE_S)
        wait_for(lambda: not children())
        done.clear()
    pool.close()
