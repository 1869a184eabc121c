"""The real API process with engines that compute nothing.

`python -m sightline.bench.instant_server STEP_MS MODEL KEPT_MEDIA_MB [ENGINES [SEQUENCES]]`
"""

import sys

from sightline.config import Config, EngineConfig, MediaConfig, ModelConfig, ServerConfig
from sightline.server.serve import serve


def main() -> int:
    step_ms, model, kept_mb, *several = sys.argv[1:]
    engines, *sequences = several or ["1"]
    config = Config(
        model=ModelConfig(model=model, load_format="dummy"),
        media=MediaConfig.for_server(),
        engine=EngineConfig(max_num_seqs=int(sequences[0])) if sequences else EngineConfig(),
        server=ServerConfig(port=0, kept_media_mb=int(kept_mb), data_parallel_size=int(engines)),
    )
    return serve(config, (sys.executable, "-m", "sightline.bench.instant_engine", step_ms, *sequences))


if __name__ == "__main__":
    sys.exit(main())
