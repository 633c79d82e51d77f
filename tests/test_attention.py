"""Attention over a request's own keys and values: each row as if it were alone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from backend.embedded import attention
from backend.embedded.attention import KVCache, RowAttention, rows_agree

HEADS, KV_HEADS, DIM = 9, 3, 64


@pytest.mark.usefixtures("restore_threads")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("start", [20, 61, 130, 700])
@pytest.mark.parametrize("agree", [None, False], ids=["as probed", "apart"])
def test_a_row_attends_the_same_alone_and_beside_others(
    start: int, threads: int, agree: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if agree is not None:
        monkeypatch.setattr(attention, "rows_agree", lambda *_: agree)
    torch.set_num_threads(threads)
    cache, queries, keys_and_values = _fill(start)
    together = RowAttention(cache, HEADS, start, 4)(0, queries, keys_and_values)
    for row in range(4):
        part = slice(row, row + 1)
        alone = RowAttention(cache, HEADS, start + row, 1)(0, queries[part], keys_and_values[part])
        assert torch.equal(alone, together[part])
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("agree", [True, False], ids=["together", "apart"])
@pytest.mark.parametrize("start", [0, 61, 300])
def test_both_ways_attend_as_the_formula_says(start: int, agree: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "rows_agree", lambda *_: agree)
    cache, queries, keys_and_values = _fill(start)
    attended = RowAttention(cache, HEADS, start, 4)(0, queries, keys_and_values)
    keys, values = cache.stored[0].repeat_interleave(HEADS // KV_HEADS, 0).chunk(2)  # [heads, capacity, dim]
    for row in range(4):
        seen = start + row + 1
        weights = (keys[:, :seen] @ queries[row][..., None] / DIM**0.5).softmax(1)  # [heads, seen, 1]
        expected = (weights * values[:, :seen]).sum(1).flatten()
        torch.testing.assert_close(attended[row], expected, rtol=1e-4, atol=1e-5)


def test_rows_are_kept_apart_where_the_processor_sums_rows_together_in_another_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exact = F.scaled_dot_product_attention

    def rounded(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """As a kernel for eight rows or fewer might: almost the same."""
        attended = exact(queries, keys, values, mask)
        return attended * (1 + 1e-6) if queries.shape[2] <= 8 else attended

    monkeypatch.setattr(F, "scaled_dot_product_attention", rounded)
    assert not rows_agree.__wrapped__(KV_HEADS, DIM, 1)


def _fill(start: int) -> tuple[KVCache, Tensor, Tensor]:
    """A cache of one layer with something everywhere, and four rows that come to stand at `start`."""
    generator = torch.Generator().manual_seed(start)
    cache = KVCache(1, KV_HEADS, DIM, 1024)
    cache.stored.normal_(generator=generator)
    queries = torch.randn(4, HEADS, DIM, generator=generator)
    return cache, queries, torch.randn(4, 2 * KV_HEADS, DIM, generator=generator)
