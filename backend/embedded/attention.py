"""Keys and values of one request, and attention over them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 64  # attention spans are rounded up to this many positions
ROWS_UNIT = 4  # query rows are filled up to a multiple: fewer at an end go through other kernels, rounding differently
PROBED_ROWS = (*range(ROWS_UNIT, 40, ROWS_UNIT), 64, 192)
PROBED_STRIDE = 7  # query rows between the short pieces that are tried
PROBED_SPANS = (BLOCK, 5 * BLOCK, 16 * BLOCK)


class KVCache:
    """Keys and values of every layer in float32, allocated once for the whole context.

    float32, because CPUs attend faster in it than in bfloat16, which they must widen at every step. The operating
    system backs the memory page by page as it is written, so an unused context costs nothing.
    """

    def __init__(
        self,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        capacity: int,
        device: torch.device | None = None,
    ) -> None:
        padded = -(-capacity // BLOCK) * BLOCK
        self.capacity = capacity
        # Keys in front of values. Zeroed: padded positions are masked, but a stray NaN there would survive the mask.
        self.stored = torch.zeros(num_layers, 2 * num_kv_heads, padded, head_dim, device=device)


class RowAttention:
    """Attention in which a row's result depends on its own position alone, not on what rows stand beside it.

    That, with the row-wise matmuls, makes greedy decoding with a draft bit-exact. Spans follow from the position;
    rows whose spans differ (a step that crosses a multiple of BLOCK) are computed in two calls.
    """

    def __init__(self, cache: KVCache, heads: int, start: int, rows: int) -> None:
        """The rows stand at positions start, start + 1, ... Every view is made here, for all layers at once."""
        _, keys_and_values, _, dim = cache.stored.shape
        device = cache.stored.device
        kv_heads = keys_and_values // 2
        group = heads // kv_heads  # query heads that share a kv head
        self._grouping = (rows, kv_heads, group, dim)
        # One view per layer: [rows, 2 * kv_heads, dim]
        self._own = cache.stored[:, :, start : start + rows].transpose(1, 2).unbind()
        together = device.type != "cpu" or rows_agree(kv_heads, dim, torch.get_num_threads())
        self._parts: list[_RowsTogether | _RowsApart] = []
        first = 0
        while first < rows:
            span = (start + first) // BLOCK * BLOCK + BLOCK
            last = min(rows, span - start)
            mask = mask_after(torch.arange(start + first, start + last, device=device), span)
            part, seen = slice(first, last), cache.stored[:, :, :span]
            self._parts.append(_RowsTogether(part, group, seen, mask) if together else _RowsApart(part, seen, mask))
            first = last

    def __call__(self, layer: int, queries: Tensor, keys_and_values: Tensor) -> Tensor:
        """queries: [rows, heads, dim]; keys_and_values: [rows, 2 * kv_heads, dim] -> [rows, heads * dim] float32"""
        self._own[layer].copy_(keys_and_values)
        grouped = queries.view(self._grouping)  # [rows, kv_heads, group, dim]
        if len(self._parts) == 1:
            attended = self._parts[0].attend(layer, grouped)
        else:
            attended = torch.cat([part.attend(layer, grouped[part.rows]) for part in self._parts])
        return attended.reshape(len(queries), -1)


class _RowsTogether:
    """Rows of one span as query rows of one call: they share the reading of keys and values."""

    def __init__(self, rows: slice, group: int, stored: Tensor, mask: Tensor) -> None:
        """stored: [layers, 2 * kv_heads, span, dim]; mask: [rows, span]"""
        self.rows = rows
        self._stored = stored.unbind()
        # Reading a layer's keys and values once in a row, to work on the copy, is faster than working on them where
        # they lie, far from every cache: the products read them in pieces.
        self._near = stored.new_empty(stored.shape[1:])
        self._keys, self._values = self._near[None].chunk(2, dim=1)  # [1, kv_heads, span, dim]
        kv_heads, _, dim = self._keys.shape[1:]
        shape = (rows.stop - rows.start, group)
        used = math.prod(shape)
        spare = -used % ROWS_UNIT
        # All queries of a kv head stacked, filled up with zeros: [1, kv_heads, rows * group and more, dim]
        self._stacked = stored.new_zeros(1, kv_heads, used + spare, dim)
        self._slots = self._stacked[0, :, :used].view(kv_heads, *shape, dim).transpose(0, 1)
        self._answers = (kv_heads, *shape, dim)
        self._used = used
        self._mask = F.pad(mask.repeat_interleave(group, 0), (0, 0, 0, spare))

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        """[rows, kv_heads, group, dim] -> the same"""
        self._slots.copy_(queries)
        self._near.copy_(self._stored[layer])
        attended = F.scaled_dot_product_attention(self._stacked, self._keys, self._values, self._mask)
        return attended[0, :, : self._used].view(self._answers).transpose(0, 1)


class _RowsApart:
    """Every row a batch entry of its own, through the same instructions whatever the others are."""

    def __init__(self, rows: slice, stored: Tensor, mask: Tensor) -> None:
        """stored: [layers, 2 * kv_heads, span, dim]; mask: [rows, span]"""
        self.rows = rows
        seen = stored[:, None].expand(-1, len(mask), -1, -1, -1)
        keys, values = seen.chunk(2, dim=2)
        self._keys, self._values = keys.unbind(), values.unbind()  # per layer [rows, kv_heads, span, dim]
        self._mask = mask[:, None, None]

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        """[rows, kv_heads, group, dim] -> the same"""
        with one_thread():
            return F.scaled_dot_product_attention(queries, self._keys[layer], self._values[layer], self._mask)


@cache
@torch.inference_mode()
def rows_agree(kv_heads: int, dim: int, _threads: int) -> bool:
    """Whether query rows in multiples of ROWS_UNIT get the same bits beside any others, on this CPU.

    Tried for every number that a verify step may have, and some of a prefill's. `_threads`, what torch runs with now,
    only keys the memory: how it deals out the work may matter too.
    """
    generator = torch.Generator().manual_seed(0)
    most = max(PROBED_ROWS)
    for span in PROBED_SPANS:
        keys, values = torch.randn(2, 1, kv_heads, span, dim, generator=generator)
        queries, mask = torch.randn(1, kv_heads, most, dim, generator=generator), torch.zeros(most, span)
        parts = [slice(0, rows) for rows in PROBED_ROWS]
        parts += [slice(row, row + ROWS_UNIT) for row in range(0, most - ROWS_UNIT, PROBED_STRIDE)]
        together = F.scaled_dot_product_attention(queries, keys, values, mask)
        for part in parts:
            some = F.scaled_dot_product_attention(queries[:, :, part], keys, values, mask[part])
            if not torch.equal(some, together[:, :, part]):
                return False
    return True


@contextmanager
def one_thread() -> Iterator[None]:
    """torch deals a row's keys out to its threads by the number of rows, and so sums them in another order."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def mask_after(positions: Tensor, span: int) -> Tensor:
    """Minus infinity on every key behind a row's own position. [rows] -> [rows, span]"""
    behind = torch.arange(span, device=positions.device) > positions[:, None]
    return torch.zeros(len(positions), span, device=positions.device).masked_fill_(behind, float("-inf"))
