"""How the C library's allocator treats freed memory, on Linux with glibc; elsewhere nothing is done.

A request of a megabyte is copied a few times on its way. By default the allocator gives freed blocks of that size back to the
system and asks for them again with the next request: each page is then cleared and mapped anew, which takes several times as
long as the copy itself.
"""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of glibc's mallopt
KEPT_BYTES = 32 << 20  # at the end of each of the allocator's areas, of which there is one per busy thread
LARGEST_KEPT_BYTES = 16 << 20  # larger blocks go back at once


def keep_freed_memory() -> bool:
    """Whether it could be arranged."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, KEPT_BYTES)) and bool(mallopt(_MMAP_THRESHOLD, LARGEST_KEPT_BYTES))
