"""`sightline batch --data-parallel-size 2` with engines that compute nothing:
`python -m benchmarks.measure.two_instant_engines IN OUT`. Prints seconds from the first row to the last, and rows answered."""

import sys
from pathlib import Path

import uvloop

from sightline.batch.run import BatchPlan, run_batch
from sightline.config import Config, ModelConfig, ServerConfig
from sightline.host_memory import keep_freed_memory
from sightline.models.locate import EMBEDDED

_ROWS = 1024  # in progress, as many as by default


def main() -> int:
    requests, answers = map(Path, sys.argv[1:])
    config = Config(
        model=ModelConfig(model=str(EMBEDDED), load_format="dummy", device="cpu"),
        server=ServerConfig(max_inflight_requests=_ROWS, log_level="warning", data_parallel_size=2),
    )
    keep_freed_memory()
    plan = BatchPlan(requests, answers, answers.with_suffix(".errors"), _ROWS)
    totals = uvloop.run(run_batch(config, plan, (sys.executable, "-m", "sightline.bench.instant_engine", "0")))
    print(totals.seconds, totals.answered)
    return 0


if __name__ == "__main__":
    sys.exit(main())
