"""Errors that a user can cause. Each carries one sentence that names the thing and its value.

Everything else that goes wrong is a bug of ours and stays an ordinary exception with its traceback.
"""


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


class PromptError(UserError):
    """Messages cannot be turned into a prompt: bad roles, placeholders in text, unusable template, too long."""


class PromptTooLongError(PromptError):
    """A prompt has more tokens, or reaches further positions, than the model can take."""


class OutOfMemoryError(Exception):
    """A step ran out of the device's memory: nobody's fault in particular. The message is fit to print as it is."""
