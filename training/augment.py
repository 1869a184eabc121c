"""What a sample goes through each time it is used, on the device: small changes that leave the answer as it is."""

import torch
import torch.nn.functional as F

READS = ("sign", "phone")  # skills whose pictures may change colour and shape
MIRRORS = ("colour", "shape", "count")  # skills that look the same in a mirror


def augment(pixels: torch.Tensor, skill: str) -> torch.Tensor:
    """uint8 [batch, frames, height, width, 3] -> float [batch, frames, 3, height, width] between about -1 and 1."""
    x = pixels.permute(0, 1, 4, 2, 3).float().div(127.5).sub(1.0)
    if skill in READS:
        x = _recoloured(_thickened(_warped(x)))
    if skill in MIRRORS:
        x = torch.where(_uniform(x, 0, 1) < 0.5, x, x.flip(-1))
    x = x * _uniform(x, 0.94, 1.06) + _uniform(x, -0.03, 0.03)
    x = x + torch.randn_like(x) * (_uniform(x, -0.04, 0.04).clamp(min=0))
    return x.clamp(-1, 1)


def _uniform(x: torch.Tensor, low: float, high: float, channels: int = 1) -> torch.Tensor:
    """[batch, 1, channels, 1, 1]"""
    return torch.empty(x.shape[0], 1, channels, 1, 1, device=x.device).uniform_(low, high)


def _warped(x: torch.Tensor) -> torch.Tensor:
    """Half of the samples shrunk in width and height apart, sheared and moved within the room that makes."""
    batch, frames, _, height, width = x.shape
    draw = torch.rand(batch, 6, device=x.device)
    on = (draw[:, 0] < 0.5).float()
    wide, high = 1 + on * 0.2 * draw[:, 1], 1 + on * 0.2 * draw[:, 2]  # how much of the plane the picture shows
    shear = on * 0.2 * (draw[:, 3] - 0.5) * height / width
    right, down = (wide - 1) * (2 * draw[:, 4] - 1), (high - 1) * (2 * draw[:, 5] - 1)
    zero = torch.zeros_like(wide)
    theta = torch.stack((wide, shear, right, zero, high, down), 1).view(batch, 2, 3)
    grid = F.affine_grid(theta, [batch, 3, height, width], align_corners=False)
    flat = x.reshape(batch, frames * 3, height, width)
    return F.grid_sample(flat, grid, padding_mode="border", align_corners=False).view_as(x)


def _thickened(x: torch.Tensor) -> torch.Tensor:
    """A third of the samples with light or dark parts spread by up to most of a pixel: strokes of another weight."""
    flat = x.flatten(0, 1)
    light = F.max_pool2d(flat, 3, 1, 1).view_as(x)
    dark = -F.max_pool2d(-flat, 3, 1, 1).view_as(x)
    share = _uniform(x, -1, 1)
    on = (_uniform(x, 0, 1) < 0.33).float() * 0.7
    return x + on * torch.where(share > 0, light - x, dark - x) * share.abs()


def _recoloured(x: torch.Tensor) -> torch.Tensor:
    """A third of the samples with each channel stretched, shifted or turned round. Light and dark stay apart."""
    turn = torch.where(_uniform(x, 0, 1) < 0.5, 1.0, -1.0)
    other = x * turn * _uniform(x, 0.7, 1.0, 3) + _uniform(x, -0.2, 0.2, 3)
    return torch.where(_uniform(x, 0, 1) < 0.33, other, x)
