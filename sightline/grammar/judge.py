"""Compiles a grammar in a process of its own, whose time and memory are bounded: the library's limits do not cover everything.

Intersections of regular expressions, say, can take minutes, and nothing can stop them in one's own process. Run as a file and
without site-packages, so that it starts fast; its argument is the folder where this process finds the library. It reads
{"grammar": …, "limits": …} and writes what is wrong with the grammar, as JSON, or "".
"""

import contextlib
import importlib.util
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

CPU_S = 3  # of processor time, so that a busy machine judges as an idle one
MEMORY_BYTES = 4 * 1024**3  # of addresses
WAIT_S = 120.0


def judge(grammar: str, limits: dict[str, Any]) -> str:
    """What is wrong with a grammar, in the library's words; empty if nothing is."""
    question = json.dumps({"grammar": grammar, "limits": limits}).encode()
    command = [sys.executable, "-I", "-S", __file__, _library_folder()]
    try:
        done = subprocess.run(command, input=question, capture_output=True, timeout=WAIT_S)
    except subprocess.TimeoutExpired:
        return "too complex"
    if done.returncode < 0:  # killed
        return "too complex"
    if done.returncode > 0:
        raise RuntimeError(f"A grammar could not be judged: {done.stderr.decode(errors='replace')[-500:]}")
    return str(json.loads(done.stdout))


def _library_folder() -> str:
    """Wherever this process would import it from: site-packages, those of a user, or PYTHONPATH."""
    found = importlib.util.find_spec("llguidance")
    assert found is not None and found.origin is not None, "llguidance is not installed"
    return str(Path(found.origin).parent.parent)


def main() -> None:
    sys.path.append(sys.argv[1])
    import llguidance

    os.nice(10)  # those who have an answer coming go first
    question = json.loads(sys.stdin.buffer.read())
    with contextlib.suppress(ValueError, OSError):  # where there is a lower limit already, that one holds
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limits = llguidance.LLParserLimits(**question["limits"])
    try:
        fault = llguidance.LLMatcher.validate_grammar(question["grammar"], None, limits=limits)
    except BaseException as error:  # the library panics on some grammars, which is no Exception
        fault = f"the library fails on it with {type(error).__name__}"
    json.dump("" if fault.startswith("WARNING") else fault, sys.stdout)


if __name__ == "__main__":
    main()
