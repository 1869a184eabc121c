"""What is left to do when a step runs out of memory in spite of the plan: give back what it took, and say so in a sentence."""

import traceback

import torch

from sightline.errors import HostMemoryError, OutOfMemoryError
from sightline.host_memory import is_lack_of_memory


def recover(error: Exception) -> Exception:
    """The error that the step's requests are told. After a lack of memory, all that the step held is given back."""
    if is_lack_of_memory(error):
        traceback.clear_frames(error.__traceback__)
        return HostMemoryError("The machine has not enough memory free for the step that computed this request.")
    if not isinstance(error, torch.OutOfMemoryError):
        return error
    # The frames of the failed call hold its tensors, and the error holds the frames.
    traceback.clear_frames(error.__traceback__)
    torch.cuda.empty_cache()
    return OutOfMemoryError(
        "The GPU ran out of memory in the step that computed this request; ask again, and if it goes on, lower "
        "gpu_memory_utilization or max_num_batched_tokens."
    )
