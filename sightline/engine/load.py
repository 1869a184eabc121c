"""From a checkpoint's files to an engine: a worker, here or in a process of its own, and the host's side of it."""

from sightline.config import Config, EngineConfig, MediaConfig
from sightline.encoder.decoding.decoder import MediaDecoder
from sightline.engine.engine import Drafter, Engine
from sightline.engine.executor import Executor, LocalExecutor
from sightline.engine.process_executor import ProcessExecutor
from sightline.engine.remote.client import RemoteEncoder
from sightline.engine.remote.identity import identity_of
from sightline.engine.warm_up import warm_up
from sightline.models.files import ModelFiles
from sightline.models.model import VisionLanguageModel
from sightline.parallel.launch import Launch
from sightline.processors import choose_decode_threads
from sightline.prompt.tokenizer import Tokenizer
from sightline.spec import ProcessorSpec
from sightline.timing import StageClock
from sightline.worker.build import build_worker
from sightline.worker.load import ProgressCallback, facts_of, load_worker

_MEGABYTE = 1024**2


def load_engine(
    config: Config,
    files: ModelFiles,
    progress: ProgressCallback | None = None,
    clock: StageClock | None = None,
    launch: Launch | None = None,
) -> Engine:
    """`clock` is told how long each part of it took. `launch`: where somebody else has started the ranks' processes."""
    clock = clock or StageClock()
    if config.engine.worker_process or config.engine.tensor_parallel_size > 1:
        executor: Executor = ProcessExecutor(config, progress, clock, launch)
    else:
        executor = LocalExecutor(*load_worker(config, files, progress, clock))
    if executor.facts.tilings is not None:
        executor.facts.tilings.log()  # a worker process has no log of its own
    engine = make_engine(
        executor,
        files.tokenizer,
        config.engine,
        files.max_model_len,
        config.model.seed,
        page_limit_s=config.media.max_pdf_seconds,
    )
    wanted = config.engine.warm_up
    if wanted or (wanted is None and executor.facts.device.startswith("cuda")):
        warm_up(engine, files, clock)  # with the tower here: it may be needed while the other one is away
    if config.encoder.encoder_url is not None:
        _use_other_encoder(engine, config, files)
    return engine


def _use_other_encoder(engine: Engine, config: Config, files: ModelFiles) -> None:
    """A ConfigError where the other server is another model, or does not let us in; then the engine is closed."""
    facts = engine.executor.facts
    own = identity_of(config, files, facts.tower_digest, facts.dtype, facts.gpu_decoder, facts.gpu_kinds)
    remote = RemoteEncoder(config.encoder, own, config.engine.decode_memory_mb * _MEGABYTE, engine.encoder.wake)
    try:
        remote.start()
    except BaseException:
        engine.close()
        raise
    engine.encoder.use(remote)


def make_engine(
    executor: Executor,
    tokenizer: Tokenizer,
    config: EngineConfig,
    max_model_len: int,
    seed: int = 0,
    drafter: Drafter | None = None,
    page_limit_s: float = MediaConfig.max_pdf_seconds,
) -> Engine:
    """The host's side over a worker that is loaded. `page_limit_s` is how long rendering a page of a PDF may take."""
    memory_bytes = config.decode_memory_mb * _MEGABYTE
    decoder = MediaDecoder(
        choose_decode_threads(config.decode_threads), memory_bytes, page_limit_s, config.share_repeated_frames
    )
    decoder.get_ready()
    return Engine(executor, decoder, tokenizer, config, max_model_len, seed, drafter)


def local_executor(
    model: VisionLanguageModel,
    processor: ProcessorSpec,
    config: EngineConfig,
    max_model_len: int,
    max_image_pixels: int = MediaConfig.max_image_pixels,
) -> LocalExecutor:
    """A worker in this process over a model that is loaded."""
    worker, memory = build_worker(model, processor, config, max_model_len, max_image_pixels)
    return LocalExecutor(worker, facts_of(worker, memory))
