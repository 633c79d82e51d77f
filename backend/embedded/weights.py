"""Weight matrices as they come from a file, before they are packed for a dtype."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from backend.embedded.config import TargetConfig

GROUP = 32  # weights that share one scale and one minimum in Q4_1


@dataclass(frozen=True)
class Q4Matrix:
    """A Q4_1 matrix: `weight = codes * scale + minimum`, per group of 32 inputs.

    codes: [out, in] uint8 in 0..15; scale, minimum: [out, in / 32] float32.
    """

    codes: Tensor
    scale: Tensor
    minimum: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        out_features, in_features = self.codes.shape
        return out_features, in_features

    def dequantise(self) -> Tensor:
        """[out, in] float32."""
        out_features, in_features = self.codes.shape
        grouped = self.codes.view(out_features, in_features // GROUP, GROUP).float()
        return (grouped * self.scale[..., None] + self.minimum[..., None]).view(out_features, in_features)


Matrix = Tensor | Q4Matrix


@dataclass(frozen=True)
class TargetWeights:
    """All tensors of a target under their Hugging Face names, rotary halves interleaved (`interleave_rotary`)."""

    config: TargetConfig
    matrices: Mapping[str, Matrix]
    norms: Mapping[str, Tensor]
    embedding: Tensor  # [vocab, hidden] float32 or bfloat16
    head: Tensor | None  # [vocab, hidden]; None: tied to the embedding


def as_float(matrix: Matrix) -> Tensor:
    return matrix.dequantise() if isinstance(matrix, Q4Matrix) else matrix.float()


def stack_rows(matrices: list[Matrix]) -> Matrix:
    """Put matrices that read the same input under one another; stays Q4_1 where all are."""
    quantised = [matrix for matrix in matrices if isinstance(matrix, Q4Matrix)]
    if len(quantised) == len(matrices):
        return Q4Matrix(
            torch.cat([m.codes for m in quantised]),
            torch.cat([m.scale for m in quantised]),
            torch.cat([m.minimum for m in quantised]),
        )
    return torch.cat([as_float(matrix) for matrix in matrices])


def interleave_rotary(weight: Tensor, num_heads: int) -> Tensor:
    """Hugging Face order (all first halves, then all second halves) to pairs side by side. [heads * dim, ...]"""
    rows, *rest = weight.shape
    half = rows // num_heads // 2
    return weight.reshape(num_heads, 2, half, *rest).transpose(1, 2).reshape(rows, *rest)


def split_rotary(weight: Tensor, num_heads: int) -> Tensor:
    """The inverse of `interleave_rotary`. [heads * dim, ...]"""
    rows, *rest = weight.shape
    half = rows // num_heads // 2
    return weight.reshape(num_heads, half, 2, *rest).transpose(1, 2).reshape(rows, *rest)
