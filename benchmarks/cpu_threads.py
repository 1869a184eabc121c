"""How many times as long a token takes on a CPU with torch's own threads as with those that are chosen here.

    python benchmarks/cpu_threads.py --json out.json

Alone and beside busy neighbours, which only count. Three processes hold the same model:

defaults   torch's own: a thread for each processor, and threads that wait spin
one        one thread
chosen     as `sightline` does it: as many as the model's size is worth, and they sleep

They answer in turns, so that whatever else the machine does meets all. A figure is the ratio of a process's median over all
rounds to that of `chosen`; below 1, it was faster. Times are not kept: they say more about the machine than about the choice.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

TOKENS = 32
# libgomp's own default for waiting threads, in rounds of a loop; and no limit on how many threads there are
DEFAULTS = {"GOMP_SPINCOUNT": "300000"}
MODELS = {"embedded": 0, "38 M": 512, "152 M": 1024}  # by parameters of the language model; hidden size, 0: as it comes


def answer_on_demand(hidden: int, threads: int) -> None:
    """In a process of its own: for each line that comes, one answer, of which a line says the milliseconds a token."""
    from sightline import LLM, SamplingParams

    settings: dict[str, Any] = {"cpu_threads": threads} if threads else {}
    sampling = SamplingParams(max_tokens=TOKENS, temperature=0, ignore_eos=True)
    with tempfile.TemporaryDirectory() as folder:
        if hidden:
            write_model(Path(folder) / "model", hidden)
            settings |= {"model": str(Path(folder) / "model"), "load_format": "dummy"}
        with LLM(**settings) as llm:
            for _ in sys.stdin:
                answer = llm.chat([{"role": "user", "content": "Hello"}], sampling)
                print(1000 * answer.timings["per_token"], flush=True)


def write_model(folder: Path, hidden: int) -> None:
    from sightline.models.create import create_checkpoint

    create_checkpoint(folder, "qwen3-vl", "tiny", weights=False)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"] |= {
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_attention_heads": hidden // 64,
        "num_key_value_heads": hidden // 128,
        "num_hidden_layers": 12,
    }
    config["vision_config"]["out_hidden_size"] = hidden
    (folder / "config.json").write_text(json.dumps(config))


class Answerer:
    def __init__(self, hidden: int, threads: int, environment: dict[str, str]) -> None:
        command = [sys.executable, __file__, "--answer", str(hidden), str(threads)]
        own = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY")}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env={**own, **environment})

    def ask(self) -> float:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@contextlib.contextmanager
def neighbours(count: int) -> Iterator[None]:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def compare(name: str, processors: int, rounds: int) -> Iterator[dict[str, object]]:
    hidden = MODELS[name]
    answerers = {
        "defaults": Answerer(hidden, processors, DEFAULTS),
        "one": Answerer(hidden, 1, {}),
        "chosen": Answerer(hidden, 0, {}),
    }
    try:
        for each in answerers.values():  # the first answer warms up
            each.ask()
        for count in (0, processors, 2 * processors):
            times: dict[str, list[float]] = {setting: [] for setting in answerers}
            with neighbours(count):
                for _ in range(rounds):
                    for setting, each in answerers.items():
                        times[setting].append(each.ask())
            medians = {setting: statistics.median(taken) for setting, taken in times.items()}
            ratios = {setting: round(medians[setting] / medians["chosen"], 2) for setting in ("defaults", "one")}
            yield {"model": name, "neighbours": count, **ratios, "rounds": rounds}
    finally:
        for each in answerers.values():
            each.close()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--answer", nargs=2, type=int, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.answer:
        return answer_on_demand(*given.answer)
    processors = len(os.sched_getaffinity(0))
    cases = []
    for name in given.models:
        for case in compare(name, processors, given.rounds):
            cases.append(case)
            print(f"{name:>9}  {case['neighbours']} neighbours  defaults {case['defaults']}  one {case['one']}", flush=True)
    if given.json:
        given.json.write_text(json.dumps({"processors": processors, "tokens": TOKENS, "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
