"""Matrix times rows, in the packed form of each dtype.

Every kernel here treats a row the same whatever rows stand beside it (fp32 does not: its results can differ in
the last bit). Greedy decoding with a draft is bit-exact to decoding without one because of that;
`self_check.py` tests it on the machine at hand.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from functools import cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.embedded.weights import GROUP, Matrix, Q4Matrix, as_float

Dtype = Literal["w8a8", "int4", "int8", "bf16", "fp32"]
DTYPES: tuple[Dtype, ...] = ("w8a8", "int4", "int8", "bf16", "fp32")

MOST_CODE = 63  # of a w8a8 weight: AVX2 adds two products of 8 bits in 16, and 2 * 255 * 63 still fits
ZERO_POINT = 128  # of a w8a8 activation, whose codes are unsigned
MOST_ACTIVATION = 127
SMALLEST = 1e-12  # scale, so that a row of zeros divides by something
CACHE_LINE = 64  # bytes
MOST_PROBED = 1024  # output features with which kernels are compared: more do not change which one is taken
WIDTH_UNITS: dict[Dtype, int] = {"int8": 16, "int4": GROUP}  # the kernels read rows in pieces of so many weights


def activation_dtype(dtype: Dtype) -> torch.dtype:
    """What flows between the matrices: float32 for w8a8 and fp32, bfloat16 for the others."""
    return torch.float32 if dtype in {"w8a8", "fp32"} else torch.bfloat16


class Linear(ABC):
    """`y = x @ weight.T` for a fixed weight. x: [rows, in]; y: [rows, out]."""

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor: ...

    def after_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """`self(rms_norm(x, weight, eps))`, where a kernel can be cheaper about it."""
        return self(rms_norm(x, weight, eps))

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """The packed tensors, to be kept in the cache."""

    def to(self, device: torch.device) -> Linear:
        """The same matrix on another device."""
        return restore({name: tensor.to(device) for name, tensor in self.tensors().items()})


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


class DenseLinear(Linear):
    """fp32 or bf16 weights, torch's own matmul.

    Where a single row of bf16 goes a way of its own, it is run twice, side by side, and so the way of all others.
    """

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight  # [out, in]
        self._doubles = weight.dtype == torch.bfloat16 and single_rows_differ(*weight.shape, weight.device)

    def __call__(self, x: Tensor) -> Tensor:
        if self._doubles and len(x) == 1:
            return F.linear(x.repeat(2, 1), self.weight)[:1]
        return F.linear(x, self.weight)

    def tensors(self) -> dict[str, Tensor]:
        return {"weight": self.weight}


@cache
def single_rows_differ(out_features: int, in_features: int, device: torch.device) -> bool:
    """Whether a bf16 row alone is summed in another order than beside a second one, as some kernels do."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(min(out_features, MOST_PROBED), in_features, generator=generator).to(device, torch.bfloat16)
    x = torch.randn(32, in_features, generator=generator).to(device, torch.bfloat16)
    alone = torch.cat([F.linear(row, weight) for row in torch.split(x, 1)])
    in_pairs = torch.cat([F.linear(pair, weight) for pair in torch.split(x, 2)])
    return not torch.equal(alone, in_pairs)


class Int8Linear(Linear):
    """int8 weights, one scale per output row."""

    def __init__(self, weight: Tensor, scale: Tensor) -> None:
        self.weight = align(weight)  # [out, in] int8
        self.scale = scale  # [out] bfloat16

    def __call__(self, x: Tensor) -> Tensor:
        return torch._weight_int8pack_mm(x, self.weight, self.scale)

    def tensors(self) -> dict[str, Tensor]:
        return {"weight": self.weight, "scale": self.scale}


class Int4Linear(Linear):
    """4-bit weights in groups of 32 with a scale and a zero each: Q4_1 as it is, but for bf16 rounding of the two."""

    def __init__(self, packed: Tensor, scale_and_zero: Tensor) -> None:
        self.packed = align(packed)
        self.scale_and_zero = scale_and_zero  # [in / 32, out, 2] bfloat16
        self._multiply = torch.ops.aten._weight_int4pack_mm_for_cpu.default

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = self._multiply(x, self.packed, GROUP, self.scale_and_zero)
        return y

    def tensors(self) -> dict[str, Tensor]:
        return {"packed": self.packed, "scale_and_zero": self.scale_and_zero}


class W8A8Linear(Linear):
    """8-bit products of weights (a scale per output row) and activations (a scale per row), summed exactly in int32.

    Integer sums do not depend on their order, so rows are the same whatever stands beside them.
    """

    def __init__(self, codes: Tensor, scale: Tensor) -> None:
        """codes: [out, in] int8 within MOST_CODE; scale: [out] float32"""
        zeros = torch.zeros(len(scale), dtype=torch.int64)
        with warnings.catch_warnings():
            # torch means to drop these tensors one day; tuning then finds no w8a8 and takes another dtype.
            warnings.filterwarnings("ignore", "torch.quantize_per_tensor", UserWarning)
            weight = torch._make_per_channel_quantized_tensor(codes, scale.double(), zeros, 0)
        self._packed = torch.ops.quantized.linear_prepack(weight, None)
        multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default
        # The operator itself: its Python wrapper searches the packed weight for fakes at every call.
        self._multiply = getattr(multiply, "_op", multiply)

    def __call__(self, x: Tensor) -> Tensor:
        largest = largest_of_rows(x)
        return self._multiply_codes(x / largest).mul_(largest)

    def after_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        # The norm's division and the row's scale cancel: only the product has to be brought to size.
        weighted = x * weight
        largest = largest_of_rows(weighted)
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        mean_square = torch.addcmul(_constant(eps), size, size, value=1 / x.shape[-1])
        return self._multiply_codes(weighted.div_(largest)).mul_(mean_square.rsqrt_().mul_(largest))

    def _multiply_codes(self, x: Tensor) -> Tensor:
        """x: [rows, in] within -1 and 1, multiplied as codes of MOST_ACTIVATION steps to each side of ZERO_POINT"""
        y: Tensor = self._multiply(x, 1 / MOST_ACTIVATION, ZERO_POINT, self._packed)
        return y

    def tensors(self) -> dict[str, Tensor]:
        weight, _ = torch.ops.quantized.linear_unpack(self._packed)
        return {"codes": weight.int_repr(), "row_scale": weight.q_per_channel_scales().float()}


def largest_of_rows(x: Tensor) -> Tensor:
    """Largest absolute value of every row, never zero. [rows, in] -> [rows, 1]"""
    return x.abs().amax(-1, keepdim=True).clamp_min_(SMALLEST)


@cache
def _constant(value: float) -> Tensor:
    return torch.tensor(value)


def align(tensor: Tensor) -> Tensor:
    """The tensor, copied where it does not begin at a cache line.

    Tensors mapped from a file may lie anywhere, and torch's AVX-512 kernel for int8 then ends the process.
    """
    return tensor if tensor.data_ptr() % CACHE_LINE == 0 else tensor.clone()


def fits(dtype: Dtype, in_features: int) -> bool:
    """Whether the kernel of `dtype` can multiply rows of this width."""
    return in_features % WIDTH_UNITS.get(dtype, 1) == 0


def pack(matrix: Matrix, dtype: Dtype) -> Linear:
    """Bring a matrix into the form that `dtype` multiplies with. Raises ValueError where its width does not fit."""
    in_features = matrix.shape[1]
    if not fits(dtype, in_features):
        raise ValueError(
            f"{dtype} multiplies rows of a multiple of {WIDTH_UNITS[dtype]} weights, this model has rows of "
            f"{in_features}: choose w8a8, bf16 or fp32 with --dtype."
        )
    if dtype == "fp32":
        return DenseLinear(as_float(matrix).contiguous())
    if dtype == "bf16":
        return DenseLinear(as_float(matrix).bfloat16().contiguous())
    if dtype == "int8":
        return _pack_int8(as_float(matrix))
    if dtype == "w8a8":
        return _pack_w8a8(as_float(matrix))
    return _pack_int4(matrix if isinstance(matrix, Q4Matrix) else quantise_q4(matrix.float()))


def restore(tensors: dict[str, Tensor]) -> Linear:
    """The inverse of `Linear.tensors`."""
    if "packed" in tensors:
        return Int4Linear(tensors["packed"], tensors["scale_and_zero"])
    if "codes" in tensors:
        return W8A8Linear(tensors["codes"], tensors["row_scale"])
    if "scale" in tensors:
        return Int8Linear(tensors["weight"], tensors["scale"])
    return DenseLinear(tensors["weight"])


def quantise_q4(weight: Tensor) -> Q4Matrix:
    """Round a float matrix to Q4_1: 16 even steps from the smallest to the largest weight of each group."""
    out_features, in_features = weight.shape
    grouped = weight.view(out_features, in_features // GROUP, GROUP)
    minimum = grouped.amin(-1)
    scale = (grouped.amax(-1) - minimum) / 15
    codes = ((grouped - minimum[..., None]) / scale.clamp_min(SMALLEST)[..., None]).round().clamp(0, 15)
    return Q4Matrix(codes.to(torch.uint8).view(out_features, in_features), scale, minimum)


def _pack_int8(weight: Tensor) -> Int8Linear:
    # The scale is rounded to bf16 first, so that the codes are rounded against the scale that is used.
    scale = (weight.abs().amax(1) / 127).clamp_min(SMALLEST).bfloat16()
    codes = (weight / scale.float()[:, None]).round().clamp(-127, 127)
    return Int8Linear(codes.to(torch.int8), scale)


def _pack_w8a8(weight: Tensor) -> W8A8Linear:
    scale = (weight.abs().amax(1) / MOST_CODE).clamp_min(SMALLEST)
    return W8A8Linear((weight / scale[:, None]).round().to(torch.int8), scale)


def _pack_int4(matrix: Q4Matrix) -> Int4Linear:
    # The kernel computes (code - 8) * scale + zero.
    scale = matrix.scale.bfloat16()
    zero = (matrix.minimum + 8 * scale.float()).bfloat16()
    scale_and_zero = torch.stack([scale.T, zero.T], dim=-1).contiguous()
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(matrix.codes.to(torch.int32), 1)
    return Int4Linear(packed, scale_and_zero)
