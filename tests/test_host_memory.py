"""Freed blocks of a megabyte stay with the process."""

import subprocess
import sys

import pytest

CODE = """
import ctypes, resource, sys
from sightline.host_memory import keep_freed_memory
if sys.argv[1] == "kept" and not keep_freed_memory():
    sys.exit(3)
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def turn():
    blocks = [bytearray(b"x") * 900_000 for _ in range(6)]
    del blocks
for _ in range(5):
    turn()
before = faults()
for _ in range(50):
    turn()
print(faults() - before)
"""


def faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", CODE, how], capture_output=True, text=True)
    if done.returncode == 3:
        pytest.skip("the C library is not glibc")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


# Red if the allocator's settings are not taken: then each turn maps its 1300 pages anew.
def test_pages_are_not_mapped_again() -> None:
    assert faults("kept") < 50 * 100
    assert faults("default") > 10 * max(faults("kept"), 100)
