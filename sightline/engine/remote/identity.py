"""What two servers must have in common for one to encode images for the other."""

import hashlib

from sightline.config import Config
from sightline.engine.remote.wire import PROTOCOL, Identity
from sightline.media.pillow import SOMETIMES_ROWS_FIRST
from sightline.models.files import ModelFiles


def identity_of(
    config: Config, files: ModelFiles, tower_digest: str, dtype: str, decoder: str, kinds: tuple[str, ...]
) -> Identity:
    """`decoder` and `kinds`: the library that decodes images on the GPU, and of which files."""
    assert tower_digest, "the tower's weights were not named when they were loaded"
    # All of a processor's settings are plain values, and its class says the rest.
    settings = (type(files.processor).__qualname__, files.processor, files.spec.vision, SOMETIMES_ROWS_FIRST)
    compact = config.engine.compact_patches
    return Identity(
        protocol=PROTOCOL,
        tower=tower_digest,
        processor=hashlib.sha256(f"{settings!r} compact={compact}".encode()).hexdigest(),
        dtype=dtype + (" with layers of fp8" if config.model.quantize_tower else ""),
        width=files.spec.vision.embedding_width,
        decoder=decoder,
        kinds=kinds,
    )
