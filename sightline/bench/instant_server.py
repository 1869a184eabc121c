"""The real API process with an engine that computes nothing.

`python -m sightline.bench.instant_server STEP_MS MODEL KEPT_MEDIA_MB`
"""

import sys

from sightline.config import Config, MediaConfig, ModelConfig, ServerConfig
from sightline.server.serve import serve


def main() -> int:
    step_ms, model, kept_mb = sys.argv[1:]
    config = Config(
        model=ModelConfig(model=model, load_format="dummy"),
        media=MediaConfig.for_server(),
        server=ServerConfig(port=0, kept_media_mb=int(kept_mb)),
    )
    return serve(config, (sys.executable, "-m", "sightline.bench.instant_engine", step_ms))


if __name__ == "__main__":
    sys.exit(main())
