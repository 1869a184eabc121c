"""What results call a device."""

import torch


def device_name(device: torch.device) -> str:
    """A GPU by its own name."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
