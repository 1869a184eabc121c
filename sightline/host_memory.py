"""What a process that serves settles about its memory before it begins, and whether there is any left."""

import contextlib
import ctypes
import errno
import gc
import sys
from pathlib import Path

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of glibc's mallopt
KEPT_BYTES = 32 << 20  # at the end of each of the allocator's areas, of which there is one per busy thread
LARGEST_KEPT_BYTES = 16 << 20  # larger blocks go back at once


def keep_freed_memory() -> bool:
    """Keeps the C library's allocator, where it is glibc's, from giving memory back. Whether it could be arranged.

    A request of a megabyte is copied a few times on its way. By default freed blocks of that size go back to the system, and
    are asked for again with the next request: each page is then cleared and mapped anew, which takes several times as long as
    the copy itself.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, KEPT_BYTES)) and bool(mallopt(_MMAP_THRESHOLD, LARGEST_KEPT_BYTES))


def give_freed_memory_back() -> None:
    """What keep_freed_memory keeps goes back to the system. Whoever allocates meanwhile may have to wait."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def is_lack_of_memory(error: Exception) -> bool:
    """Of the host's. torch has no class for it."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error))


def is_short_of(count: int) -> bool:
    """Whether so many bytes cannot be had now."""
    try:
        bytearray(count)
    except MemoryError:
        return True
    return False


def keep_from_the_collector() -> None:
    """What has been made up to here stays, and Python's collector of garbage no longer looks through it.

    With torch and flash-attn-4 imported that is a third of a million objects, and a look at all of them takes a sixth of a
    second, in which nobody gets a token.
    """
    gc.collect()
    gc.freeze()


def limit_more_memory(count: int) -> None:
    """Of this process, on Linux: allocations of more than so many bytes beside what it has fail from here on."""
    if sys.platform != "linux":
        return
    import resource

    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5])  # data and stacks
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = pages * resource.getpagesize() + count
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def no_memory_limit() -> None:
    """Takes limit_more_memory back."""
    if sys.platform != "linux":
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
