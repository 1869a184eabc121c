"""A PDF as images, one a page: sizes are asked of a helper process, pixels are made when they are wanted (media/pdfium.py).

Nobody in this process parses the file. What a page is known by is the file's digest, its number and the scale.
"""

import json
import math
import signal
import struct
import subprocess
import sys
import threading
from collections import OrderedDict

from sightline.config import MediaConfig
from sightline.errors import HostMemoryError, MediaError
from sightline.media.digests import digest_of
from sightline.media.limits import check_image_work, check_size
from sightline.media.pdfium import PageSize, too_many_pages
from sightline.types import PDF, ImageHeader, MediaRef

POINTS_PER_INCH = 72
_HEAD_BYTES = 1024  # of a file, among which readers look for its mark
_MEMORY_MB = 512  # that the helper may take beside the file
_LARGEST_SIDE = 10**7  # pixels; beyond, a page has no size that means anything
_COMMAND = (sys.executable, "-m", "sightline.media.pdf_process")
_KEPT = 256  # files whose sizes are remembered: a conversation sends its files with every round

_known: OrderedDict[bytes, list[PageSize]] = OrderedDict()  # by digest of the file
_lock = threading.Lock()


def pages_of(data: bytes, name: str, limits: MediaConfig) -> list[MediaRef]:
    """Each page as an image. Takes a process and some 0.1 s for a file that was not seen before."""
    if b"%PDF-" not in data[:_HEAD_BYTES]:
        raise MediaError(f"File {name} cannot be used: it is no PDF, the only kind of file that is read.")
    digest = digest_of(data)
    return [_page(data, digest, number, size, name, limits) for number, size in enumerate(_sizes(data, digest, name, limits))]


def _page(data: bytes, digest: bytes, number: int, size: PageSize, name: str, limits: MediaConfig) -> MediaRef:
    scale = limits.pdf_dpi / POINTS_PER_INCH
    source = f"{name}, page {number + 1},"
    if not all(0 < side * scale < _LARGEST_SIDE for side in size):
        raise MediaError(f"Image {source} cannot be used: it measures {size[0]:g} x {size[1]:g} points.")
    width, height = (math.ceil(side * scale) for side in size)
    header = ImageHeader(PDF, width, height, orientation=1, page=number)
    check_size(f"Image {source}", width, height, limits)
    check_image_work(f"Image {source}", header, limits)
    own = digest_of(struct.pack("<4sQQQd", b"PDF ", number, width, height, scale) + digest)
    return MediaRef("image", data, own, header, source, digest)


def _sizes(data: bytes, digest: bytes, name: str, limits: MediaConfig) -> list[PageSize]:
    with _lock:
        known = _known.get(digest)
        if known is not None:
            _known.move_to_end(digest)
    if known is None:
        known = _sizes_by_helper(data, name, limits)
        with _lock:
            _known[digest] = known
            while len(_known) > _KEPT:
                _known.popitem(last=False)
    if len(known) > limits.max_pdf_pages:  # seen by somebody with other limits
        raise too_many_pages(name, len(known), limits.max_pdf_pages)
    return known


def _sizes_by_helper(data: bytes, name: str, limits: MediaConfig) -> list[PageSize]:
    seconds = limits.max_pdf_seconds
    command = [*_COMMAND, *map(str, (limits.max_pdf_pages, seconds, _MEMORY_MB + 2 * len(data) // (1 << 20)))]
    try:
        done = subprocess.run(command, input=data, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise _took_too_long(name, seconds) from None
    if done.returncode in (-signal.SIGXCPU, -signal.SIGALRM):
        raise _took_too_long(name, seconds)
    if done.returncode == -signal.SIGKILL:  # by the system: it ends helpers when memory runs out
        raise HostMemoryError(f"PDF {name} cannot be read now: the process that read it was killed.")
    if done.returncode:
        raise MediaError(f"PDF {name} cannot be read: the process that read it ended with code {done.returncode}.")
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise MediaError(answer["error"].replace("{source}", name))
    return [(float(width), float(height)) for width, height in answer["sizes"]]


def _took_too_long(name: str, seconds: int) -> MediaError:
    return MediaError(f"PDF {name} cannot be read: its pages took longer than the {seconds} s allowed (--max-pdf-seconds).")
