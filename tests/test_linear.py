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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 4, 8])
def test_tensors_that_lie_anywhere_in_memory_multiply_the_same(dtype: Dtype, rows: int) -> None:
    linear = pack(random_q4(), dtype)
    moved = restore({name: move_off_the_cache_line(tensor) for name, tensor in linear.tensors().items()})
    x = torch.randn(rows, COLUMNS, generator=torch.Generator().manual_seed(1)).to(activation_dtype(dtype))
    assert torch.allclose(linear(x), moved(x), rtol=1e-4, atol=1e-3)  # fp32 may sum in another order


def move_off_the_cache_line(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that begins 8 bytes after a cache line, as tensors mapped from a file do."""
    room = torch.empty(tensor.numel() * tensor.element_size() + 8, dtype=torch.uint8)
    moved = room[8:].view(tensor.dtype).view(tensor.shape)
    moved.copy_(tensor)
    assert moved.data_ptr() % 64 == 8
    return moved


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != "fp32"])
@pytest.mark.parametrize("width", [576, 1536])
@pytest.mark.usefixtures("restore_threads")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_is_multiplied_the_same_alone_and_beside_others(dtype: Dtype, width: int, threads: int) -> None:
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    linear = pack(torch.randn(576, width, generator=generator), dtype)
    x = torch.randn(24, width, generator=generator).to(activation_dtype(dtype))
    alone = torch.cat([linear(row) for row in torch.split(x, 1)])
    for rows in (2, 3, 4, 6, 8):
        assert torch.equal(torch.cat([linear(part) for part in torch.split(x, rows)]), alone)


@pytest.mark.parametrize(("dtype", "width"), [("int8", 40), ("int4", 48)])
def test_a_width_that_a_kernel_cannot_read_is_refused_by_name(dtype: Dtype, width: int) -> None:
    with pytest.raises(ValueError, match=f"{dtype} multiplies .* rows of {width}"):
        pack(torch.ones(4, width), dtype)


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
