"""Matrix times rows, in the packed form of each dtype.

Every kernel here treats a row the same whatever rows stand beside it (fp32 does not: its results can differ in
the last bit). Greedy decoding with a draft is bit-exact to decoding without one because of that;
`self_check.py` tests it on the machine at hand.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.embedded.weights import GROUP, Matrix, Q4Matrix, as_float

Dtype = Literal["int4", "int8", "bf16", "fp32"]
DTYPES: tuple[Dtype, ...] = ("int4", "int8", "bf16", "fp32")


def activation_dtype(dtype: Dtype) -> torch.dtype:
    """What flows between the matrices: float32 for fp32, bfloat16 for the others."""
    return torch.float32 if dtype == "fp32" else torch.bfloat16


class Linear(ABC):
    """`y = x @ weight.T` for a fixed weight. x: [rows, in]; y: [rows, out]."""

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """The packed tensors, to be kept in the cache."""


class DenseLinear(Linear):
    """fp32 or bf16 weights, torch's own matmul."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight  # [out, in]

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)

    def tensors(self) -> dict[str, Tensor]:
        return {"weight": self.weight}


class Int8Linear(Linear):
    """int8 weights, one scale per output row."""

    def __init__(self, weight: Tensor, scale: Tensor) -> None:
        self.weight = weight  # [out, in] int8
        self.scale = scale  # [out] bfloat16

    def __call__(self, x: Tensor) -> Tensor:
        return torch._weight_int8pack_mm(x, self.weight, self.scale)

    def tensors(self) -> dict[str, Tensor]:
        return {"weight": self.weight, "scale": self.scale}


class Int4Linear(Linear):
    """4-bit weights in groups of 32 with a scale and a zero each: Q4_1 as it is, but for bf16 rounding of the two."""

    def __init__(self, packed: Tensor, scale_and_zero: Tensor) -> None:
        self.packed = packed
        self.scale_and_zero = scale_and_zero  # [in / 32, out, 2] bfloat16
        self._multiply = torch.ops.aten._weight_int4pack_mm_for_cpu.default

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = self._multiply(x, self.packed, GROUP, self.scale_and_zero)
        return y

    def tensors(self) -> dict[str, Tensor]:
        return {"packed": self.packed, "scale_and_zero": self.scale_and_zero}


def pack(matrix: Matrix, dtype: Dtype) -> Linear:
    """Bring a matrix into the form that `dtype` multiplies with."""
    if dtype == "fp32":
        return DenseLinear(as_float(matrix).contiguous())
    if dtype == "bf16":
        return DenseLinear(as_float(matrix).bfloat16().contiguous())
    if dtype == "int8":
        return _pack_int8(as_float(matrix))
    return _pack_int4(matrix if isinstance(matrix, Q4Matrix) else quantise_q4(matrix.float()))


def restore(tensors: dict[str, Tensor]) -> Linear:
    """The inverse of `Linear.tensors`."""
    if "packed" in tensors:
        return Int4Linear(tensors["packed"], tensors["scale_and_zero"])
    if "scale" in tensors:
        return Int8Linear(tensors["weight"], tensors["scale"])
    return DenseLinear(tensors["weight"])


def quantise_q4(weight: Tensor) -> Q4Matrix:
    """Round a float matrix to Q4_1: 16 even steps from the smallest to the largest weight of each group."""
    out_features, in_features = weight.shape
    grouped = weight.view(out_features, in_features // GROUP, GROUP)
    minimum = grouped.amin(-1)
    scale = (grouped.amax(-1) - minimum) / 15
    codes = ((grouped - minimum[..., None]) / scale.clamp_min(1e-12)[..., None]).round().clamp(0, 15)
    return Q4Matrix(codes.to(torch.uint8).view(out_features, in_features), scale, minimum)


def _pack_int8(weight: Tensor) -> Int8Linear:
    # The scale is rounded to bf16 first, so that the codes are rounded against the scale that is used.
    scale = (weight.abs().amax(1) / 127).clamp_min(1e-12).bfloat16()
    codes = (weight / scale.float()[:, None]).round().clamp(-127, 127)
    return Int8Linear(codes.to(torch.int8), scale)


def _pack_int4(matrix: Q4Matrix) -> Int4Linear:
    # The kernel computes (code - 8) * scale + zero.
    scale = matrix.scale.bfloat16()
    zero = (matrix.minimum + 8 * scale.float()).bfloat16()
    scale_and_zero = torch.stack([scale.T, zero.T], dim=-1).contiguous()
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(matrix.codes.to(torch.int32), 1)
    return Int4Linear(packed, scale_and_zero)
