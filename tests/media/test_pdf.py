"""PDFs as images of their pages, and PDFs that are made to be refused or to cost."""

import random
import sys
import time
from collections.abc import Callable

import numpy as np
import pytest

from encoder.decoding_items import opened, wait_until_decoded
from family_processors import make_processor, patch_spec
from media.pdfs import BLUE, GREEN, RED, bomb, encrypted, many_pages, no_pages, pdf, stream
from sightline.config import MediaConfig
from sightline.encoder.decoding.decoder import MediaDecoder
from sightline.encoder.decoding.pixels import PixelState, result_shape
from sightline.errors import ConfigError, MediaError
from sightline.media import pdf as pdf_module
from sightline.media.item import item_of
from sightline.media.limits import RequestBudget
from sightline.media.source import load_media
from sightline.types import PDF, MediaRef

PROCESSOR = make_processor("qwen3-vl", patch_spec(4096, 4_000_000, 16))
GOOD = pdf((200, 100), (50, 80), (200, 100))
GIGABYTE = 1 << 30


def pages(data: bytes, name: str = "report.pdf", **limits: object) -> list[MediaRef]:
    return load_media("pdf", data, MediaConfig(**limits), name=name)


def refused(data: bytes, sentence: str, **limits: object) -> None:
    with pytest.raises(MediaError) as caught:
        pages(data, **limits)
    assert str(caught.value) == sentence


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Helpers that are started."""
    started: list[object] = []
    run = pdf_module.subprocess.run
    monkeypatch.setattr(pdf_module.subprocess, "run", lambda *given, **named: started.append(given) or run(*given, **named))
    pdf_module._known.clear()
    return started


def test_pages_are_images_of_their_size(processes: list[object]) -> None:
    """Red if a page's size, number or scale is not what its digest and header say, or a known file is read again."""
    found = pages(GOOD)
    assert [(ref.kind, ref.header.format, ref.header.width, ref.header.height, ref.header.page) for ref in found] == [
        ("image", PDF, 400, 200, 0),
        ("image", PDF, 100, 160, 1),
        ("image", PDF, 400, 200, 2),
    ]
    assert found[1].source == "report.pdf, page 2,"
    assert all(ref.data is found[0].data for ref in found) and len({ref.file_digest for ref in found}) == 1
    finer = pages(GOOD, pdf_dpi=288)
    assert finer[0].header.width == 800
    assert len({ref.digest for ref in (*found, *finer)}) == 6
    assert [ref.digest for ref in pages(GOOD, "other name.pdf")] == [ref.digest for ref in found]
    assert len(processes) == 1
    refused(GOOD, "PDF report.pdf has 3 pages, more than the 2 allowed (--max-pdf-pages).", max_pdf_pages=2)
    assert pages(pdf((200, 100), rotate=90))[0].header.height == 400


def test_pages_are_drawn_in_a_helper() -> None:
    """Each page has its own colours, in the size that its header says or, where the model sees less, in that size. Red if a
    page is drawn in this process, which does not load pdfium."""
    items = [item_of(ref, PROCESSOR) for ref in pages(GOOD, pdf_dpi=576)]
    small = item_of(pages(GOOD)[0], make_processor("qwen3-vl", patch_spec(4096, 20_000, 16)))
    with opened(2, GIGABYTE) as decoder:
        decoder.want([*items, small])
        assert wait_until_decoded(decoder, *items, small) == [PixelState.READY] * 4
        for item, colour in zip(items, (RED, GREEN, BLUE), strict=True):
            (frame,) = decoder.take(item).frames
            assert frame.shape == result_shape(item)[1:]
            assert (frame[3:-3, 3 : frame.shape[1] // 2 - 3] == np.multiply(colour, 255)).all()
            assert (frame[3:-3, frame.shape[1] // 2 + 3 :] == 255).all()
        (frame,) = decoder.take(small).frames
        assert frame.shape[:2] == small.resized
        assert (frame[3:-3, 3 : frame.shape[1] // 2 - 3] == (255, 0, 0)).all()
    assert not any(name.startswith("pypdfium2") for name in sys.modules)


def test_pages_count_as_images() -> None:
    budget = RequestBudget(MediaConfig(limit_mm_per_prompt={"image": 2}))
    with pytest.raises(MediaError, match=r"^The request has 3 images, more than the 2 allowed \(--limit-mm-per-prompt\)\.$"):
        load_media("pdf", GOOD, MediaConfig(), budget=budget)
    with pytest.raises(ConfigError, match=r"pdf_dpi is 0, but must be at least 1\."):
        MediaConfig(pdf_dpi=0)


# ---- Made to be refused

DAMAGED = "PDF report.pdf cannot be read: it is damaged or has no pages."
HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "encrypted": (lambda: encrypted(b"secret"), "PDF report.pdf cannot be read: it is encrypted with a password."),
    "zero pages": (no_pages, DAMAGED),
    "cut off": (lambda: GOOD[:200], DAMAGED),
    "only a head": (lambda: b"%PDF-1.7\n" + bytes(10_000), DAMAGED),
    "many pages": (lambda: many_pages(5000), "PDF report.pdf has 5,000 pages, more than the 100 allowed (--max-pdf-pages)."),
    "a huge page": (
        lambda: pdf((20, 20), (14_400, 14_400)),
        "Image report.pdf, page 2, has 28800x28800 pixels, more than the 150,000,000 allowed (--max-image-pixels).",
    ),
    "a page without end": (
        lambda: pdf((20, 20)).replace(b"[0 0 20 20]", b"[0 0 1000000000000000000000. 20]"),
        "Image report.pdf, page 1, cannot be used: it measures 1e+21 x 20 points.",
    ),
    "a narrow page": (
        lambda: pdf((14_000, 2)),
        "Image report.pdf, page 1, has 28000x4 pixels, but one side may be 200 times the other at most (--max-aspect-ratio).",
    ),
    "no PDF": (lambda: b"Dear all, %PDF", "File report.pdf cannot be used: it is no PDF, the only kind of file that is read."),
    "empty": (lambda: b"", "File report.pdf cannot be used: it is no PDF, the only kind of file that is read."),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_by_name(name: str) -> None:
    make, sentence = HOSTILE[name]
    refused(make(), sentence)


def test_odd_files_that_can_be_read() -> None:
    """One that opens without a password, and one that claims more pages than it has."""
    assert len(pages(encrypted(b""))) == 1
    assert len(pages(pdf((20, 20)).replace(b"/Count 1", b"/Count 999999999"))) == 1


def test_files_of_too_many_bytes() -> None:
    refused(
        b"%PDF-1.7" + bytes(1_100_000),
        "PDF report.pdf has 1.1 MB, more than the 1 MB allowed (--max-pdf-mb).",
        max_pdf_mb=1,
    )


def test_reading_sizes_may_not_take_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red if the process is waited for, or is left behind."""
    monkeypatch.setattr(pdf_module, "_COMMAND", (sys.executable, "-c", "import time; time.sleep(60)"))
    began = time.monotonic()
    sentence = "PDF report.pdf cannot be read: its pages took longer than the 1 s allowed (--max-pdf-seconds)."
    refused(pdf((21, 21)), sentence, max_pdf_seconds=1)
    assert time.monotonic() - began < 30


def test_a_process_that_dies_fails_its_file_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(pdf_module, "_COMMAND", (sys.executable, "-c", "import os; os.abort()"))
        with pytest.raises(MediaError, match=r"^PDF report.pdf cannot be read: the process that read it ended with code -6\.$"):
            pages(pdf((22, 22)))
    assert len(pages(pdf((22, 22)))) == 1


def test_sizes_within_a_limit_on_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object stream of a gigabyte in a megabyte: red if it is unpacked without a bound."""
    import zlib

    monkeypatch.setattr(pdf_module, "_MEMORY_MB", 64)
    packed = zlib.compress(bytes(GIGABYTE // 4), 9)
    tree = stream(packed, b"/Type/ObjStm/N 1/First 4/Filter/FlateDecode")
    data = GOOD.replace(b"/Kids[", b"/Kids[99 0 R ") + tree
    began = time.monotonic()
    try:
        assert len(pages(data)) < 10
    except MediaError as error:
        assert "report.pdf" in str(error)
    assert time.monotonic() - began < 30


def test_a_page_that_takes_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its forms draw each other 2 to the power of 40 times, and would take all memory after some seconds. Red if a helper goes
    on, or the next page of it waits."""
    (slow,) = (item_of(ref, PROCESSOR) for ref in pages(bomb()))
    (good, *_) = (item_of(ref, PROCESSOR) for ref in pages(GOOD))
    decoder = MediaDecoder(1, GIGABYTE, page_limit_s=0.3)
    try:
        decoder.want([slow])
        decoder._page_limit_s = 60  # for the good one, on a machine that is busy
        decoder.want([slow, good])
        assert wait_until_decoded(decoder, slow, good) == [PixelState.FAILED, PixelState.READY]
        with pytest.raises(MediaError) as caught:
            decoder.take(slow)
        assert str(caught.value) == (
            "Image report.pdf, page 1, cannot be decoded: it took longer than the 0.3 s allowed (--max-pdf-seconds)."
        )
    finally:
        decoder.close()


def test_damaged_files() -> None:
    """Red if one is anything but read or a MediaError by name."""
    chance, outcomes = random.Random(7), set[str]()
    for _ in range(8):
        mutant = bytearray(GOOD)
        for _ in range(chance.choice((1, 4, 30))):
            place = chance.randrange(9, len(mutant))
            mutant[place : place + chance.choice((0, 1, 1, 8))] = bytes(
                chance.choices(range(256), k=chance.choice((0, 1, 1, 5)))
            )
        try:
            outcomes.add(str(len(pages(bytes(mutant)))))
        except MediaError as error:
            assert "report.pdf" in str(error) and str(error).endswith(".")
            outcomes.add("refused")
    assert "3" in outcomes and "refused" in outcomes
