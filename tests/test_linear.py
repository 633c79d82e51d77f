"""Packed matrices multiply like the weights they were made from."""

from __future__ import annotations

import pytest
import torch

from backend.embedded.linear import DTYPES, Dtype, activation_dtype, pack, quantise_q4, restore, rms_norm
from backend.embedded.weights import Q4Matrix, interleave_rotary, split_rotary, stack_rows

ROWS, COLUMNS = 96, 64
TOLERANCE = {
    "fp32": 1e-5,
    "w8a8": 0.03,
    "bf16": 0.02,
    "int8": 0.03,
    "int4": 0.02,
}  # relative rms; int4 starts from Q4 weights


def random_q4(seed: int = 0) -> Q4Matrix:
    generator = torch.Generator().manual_seed(seed)
    return Q4Matrix(
        torch.randint(0, 16, (ROWS, COLUMNS), generator=generator, dtype=torch.uint8),
        torch.rand(ROWS, COLUMNS // 32, generator=generator) + 0.5,
        -8 * torch.rand(ROWS, COLUMNS // 32, generator=generator) - 4,
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_multiplies_like_the_dequantised_matrix(dtype: Dtype) -> None:
    matrix = random_q4()
    x = torch.randn(5, COLUMNS, generator=torch.Generator().manual_seed(1))
    expected = x @ matrix.dequantise().T
    got = pack(matrix, dtype)(x.to(activation_dtype(dtype))).float()
    assert ((got - expected).square().mean() / expected.square().mean()).sqrt() < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_norm_before_the_matrix_may_be_merged_but_changes_nothing(dtype: Dtype) -> None:
    linear = pack(random_q4(), dtype)
    generator = torch.Generator().manual_seed(1)
    x = (50 * torch.randn(5, COLUMNS, generator=generator)).to(activation_dtype(dtype))
    weight = torch.rand(COLUMNS, generator=generator).to(x.dtype)
    expected = linear(rms_norm(x, weight, 1e-5)).float()
    got = linear.after_norm(x, weight, 1e-5).float()
    assert ((got - expected).square().mean() / expected.square().mean()).sqrt() < 1e-3


def test_w8a8_sums_without_overflow_at_the_largest_codes() -> None:
    linear = pack(torch.ones(4, 256), "w8a8")
    assert torch.allclose(linear(torch.ones(1, 256)), torch.full((1, 4), 256.0))
    assert torch.allclose(linear(-torch.ones(1, 256)), torch.full((1, 4), -256.0))


def test_a_row_of_zeros_stays_zero_in_w8a8() -> None:
    assert torch.equal(pack(torch.ones(4, 64), "w8a8")(torch.zeros(1, 64)), torch.zeros(1, 4))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_packed_matrix_survives_the_cache(dtype: Dtype) -> None:
    linear = pack(random_q4(), dtype)
    x = torch.randn(3, COLUMNS).to(activation_dtype(dtype))
    assert torch.equal(restore(linear.tensors())(x), linear(x))


def test_rounding_to_q4_is_exact_for_weights_that_are_q4_already() -> None:
    weight = random_q4().dequantise()
    again = quantise_q4(weight)
    used = again.codes.view(ROWS, -1, 32)
    full = (used.amax(-1) == 15) & (used.amin(-1) == 0)
    assert torch.all(full)
    step = again.scale[..., None].expand(-1, -1, 32).reshape(ROWS, COLUMNS)
    assert torch.all((again.dequantise() - weight).abs() <= step / 2 + 1e-4)


def test_stacked_matrices_stay_quantised_only_where_all_are() -> None:
    assert isinstance(stack_rows([random_q4(0), random_q4(1)]), Q4Matrix)
    assert isinstance(stack_rows([random_q4(0), torch.zeros(2, COLUMNS)]), torch.Tensor)


def test_rotary_order_goes_there_and_back() -> None:
    weight = torch.arange(4 * 8 * 3).float().view(32, 3)
    assert torch.equal(split_rotary(interleave_rotary(weight, 4), 4), weight)
    assert interleave_rotary(torch.arange(8), 1).tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
