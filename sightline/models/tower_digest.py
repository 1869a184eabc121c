"""A name for a tower's weights: equal digests mean equal numbers, on whatever device and however they are laid out there."""

import hashlib

import torch

from sightline.models.tower import Tower


def tower_digest(tower: Tower) -> str:
    """SHA-256 of all parameters with their names, in hexadecimal. To be taken before `prepare`, which lays them out for the
    device, and before linear layers are put into 8-bit floats."""
    found = hashlib.sha256()
    for name, parameter in sorted(tower.named_parameters()):
        found.update(f"{name} {parameter.dtype} {list(parameter.shape)}\n".encode())
        plain = parameter.detach().cpu().contiguous()
        found.update(plain.flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()
