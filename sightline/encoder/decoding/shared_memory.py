"""Memory that two processes share and that has no name: it is gone when both have let go of it, however they end."""

import mmap
import os
import sys
import tempfile

import numpy as np
from numpy.typing import NDArray

if sys.platform == "linux":
    import fcntl


def create(size: int) -> int:
    """A descriptor of so many zero bytes. On Linux its size is sealed: a process that reads them need not fear that they go."""
    if sys.platform != "linux":
        with tempfile.TemporaryFile() as file:  # unlinked where it is made
            os.ftruncate(file.fileno(), size)
            return os.dup(file.fileno())
    descriptor = os.memfd_create("sightline-pixels", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return descriptor


def as_array(descriptor: int, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """The bytes as an array, which keeps them when the descriptor is closed."""
    return np.frombuffer(mmap.mmap(descriptor, int(np.prod(shape))), np.uint8).reshape(shape)
