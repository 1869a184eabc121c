"""A batch with engines that compute nothing: `python -m sightline.bench.instant_batch STEP_MS MODEL CONCURRENCY IN OUT`.

The last line on standard output is JSON: seconds from the first row to the last, and how many were answered.
"""

import json
import sys
from pathlib import Path

import uvloop

from sightline.batch.run import BatchPlan, run_batch
from sightline.config import Config, ModelConfig, ServerConfig
from sightline.host_memory import keep_freed_memory


def main() -> int:
    step_ms, model, concurrency, requests, answers = sys.argv[1:]
    rows = int(concurrency)
    config = Config(
        model=ModelConfig(model=model, load_format="dummy"),
        server=ServerConfig(max_inflight_requests=rows, log_level="warning"),
    )
    plan = BatchPlan(Path(requests), Path(answers), Path(f"{answers}.errors"), rows)
    keep_freed_memory()
    command = (sys.executable, "-m", "sightline.bench.instant_engine", step_ms)
    totals = uvloop.run(run_batch(config, plan, command))
    print(json.dumps({"seconds": totals.seconds, "answered": totals.answered, "failed": totals.failed}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
