"""Errors that a user can cause. Each carries one sentence that names the thing and its value.

Everything else that goes wrong is a bug of ours and stays an ordinary exception with its traceback.
"""

import re

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # in what Python writes for an object that has no text of its own


def without_addresses(text: str) -> str:
    """What libraries say may name objects of this process, whose addresses are nobody else's business."""
    return _ADDRESS.sub("", text)


class UserError(Exception):
    """Something the user gave cannot be used; the message is a complete sentence, fit to print as it is."""


class ConfigError(UserError):
    """A setting or a checkpoint's configuration is wrong, unknown or contradictory."""


class CheckpointError(UserError):
    """A checkpoint folder or its weights cannot be read or do not fit the model."""


class MediaError(UserError):
    """An image or a video cannot be fetched, parsed or decoded, or breaks a limit."""


class MissingMediaError(MediaError):
    """A medium was named without its bytes, and what is cached of it is not enough."""


class HostMemoryError(MediaError):
    """The host has not enough memory free to decode an image or a video, or to compute a step. It says nothing of the file."""


class EncoderAwayError(MediaError):
    """The server that encodes images and videos (encoder_url) is away. It says nothing of the file."""


class PromptError(UserError):
    """Messages cannot be turned into a prompt: bad roles, placeholders in text, unusable template, too long."""


class ParameterError(PromptError):
    """A named parameter of a request has a value that cannot be used."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


class PromptTooLongError(PromptError):
    """A prompt has more tokens, or reaches further positions, than the model can take."""


class OutOfMemoryError(Exception):
    """A step ran out of the device's memory: nobody's fault in particular. The message is fit to print as it is."""


class RankLost(RuntimeError):
    """Another of the ranks that hold a model together is gone, or cannot be talked to."""


class WorkerError(RuntimeError):
    """A step or an encode failed on the device, by no fault of the user's."""
