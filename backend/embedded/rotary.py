"""Rotary position embedding on interleaved pairs, as one complex product."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from backend.embedded.config import RopeScaling


def make_rotations(head_dim: int, positions: int, theta: float, scaling: RopeScaling | None = None) -> Tensor:
    """exp(i * position * frequency) for every position. [positions, 1, head_dim / 2] complex64"""
    frequency = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    if scaling is not None:
        frequency = _stretch(frequency, scaling)
    angle = torch.arange(positions, dtype=torch.float64)[:, None] * frequency
    return torch.polar(torch.ones_like(angle), angle).to(torch.complex64)[:, None]


def rotate_(heads: Tensor, rotations: Tensor) -> None:
    """Turn each pair by its position's angle, in place.

    heads: [rows, heads, dim] float32; rotations: [rows, 1, dim / 2] complex64.
    """
    torch.view_as_complex(torch.unflatten(heads, -1, (-1, 2))).mul_(rotations)


def _stretch(frequency: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3's rule: slow frequencies are divided by the factor, fast ones kept, those between blended."""
    wavelength = 2 * math.pi / frequency
    blend = (scaling.original_context / wavelength - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    blend = blend.clamp(0, 1)
    return frequency * (blend + (1 - blend) / scaling.factor)
