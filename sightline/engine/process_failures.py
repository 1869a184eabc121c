"""What an exception in the engine's process is told as to the API process."""

from sightline.engine.messages import EngineFailure
from sightline.errors import EncoderAwayError, HostMemoryError, MissingMediaError, OutOfMemoryError, UserError, WorkerError
from sightline.host_memory import is_lack_of_memory


def failure_of(error: Exception) -> EngineFailure:
    if isinstance(error, MissingMediaError):
        return EngineFailure("missing_media", str(error))
    if isinstance(error, EncoderAwayError):
        return EngineFailure("encoder_away", str(error))
    if isinstance(error, HostMemoryError):
        return EngineFailure("out_of_memory", str(error))
    if is_lack_of_memory(error):
        return EngineFailure("out_of_memory", "The engine has not enough memory free for this request.")
    if isinstance(error, UserError):
        return EngineFailure("invalid", str(error))
    if isinstance(error, OutOfMemoryError):
        return EngineFailure("internal", str(error))
    if isinstance(error, WorkerError):  # it names the error that it stands for
        return EngineFailure("internal", f"The engine failed on this request with {error}")
    return EngineFailure("internal", f"The engine failed on this request with {type(error).__name__}: {error}")
