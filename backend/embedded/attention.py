"""Keys and values of one request, and attention over them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 64  # attention spans are rounded up to this many positions


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
    """Attention in which every row is a batch entry of its own, over a span that depends on its position alone.

    A row therefore runs through the same instructions whether it is decoded alone or verified beside others:
    that, with the row-wise matmuls, makes greedy decoding with a draft bit-exact. Rows whose spans differ
    (a step that crosses a multiple of BLOCK) are computed in two calls.
    """

    def __init__(self, cache: KVCache, start: int, rows: int) -> None:
        """The rows stand at positions start, start + 1, ... Every view is made here, for all layers at once."""
        _, keys_and_values, _, dim = cache.stored.shape
        self._grouping = (rows, keys_and_values // 2, -1, dim)
        # One view per layer: [rows, 2 * kv_heads, dim]
        self._own = cache.stored[:, :, start : start + rows].transpose(1, 2).unbind()
        self._groups: list[_Group] = []
        first = 0
        while first < rows:
            span = (start + first) // BLOCK * BLOCK + BLOCK
            last = min(rows, span - start)
            mask = mask_after(torch.arange(start + first, start + last, device=cache.stored.device), span)
            seen = cache.stored[:, None, :, :span].expand(-1, last - first, -1, -1, -1)
            keys, values = seen.chunk(2, dim=2)
            self._groups.append(_Group(slice(first, last), keys.unbind(), values.unbind(), mask))
            first = last

    def __call__(self, layer: int, queries: Tensor, keys_and_values: Tensor) -> Tensor:
        """queries: [rows, heads, dim]; keys_and_values: [rows, 2 * kv_heads, dim] -> [rows, heads * dim] float32"""
        self._own[layer].copy_(keys_and_values)
        grouped = queries.view(self._grouping)  # [rows, kv_heads, group, dim]
        if len(self._groups) == 1:
            attended = self._groups[0].attend(layer, grouped)
        else:
            attended = torch.cat([group.attend(layer, grouped[group.rows]) for group in self._groups])
        return attended.reshape(len(queries), -1)


@dataclass(frozen=True)
class _Group:
    """Rows that see the same span. keys, values: per layer [rows, kv_heads, span, dim]; mask: [rows, 1, 1, span]"""

    rows: slice
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    mask: Tensor

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        """[rows, kv_heads, group, dim] -> the same"""
        with one_thread():
            return F.scaled_dot_product_attention(queries, self.keys[layer], self.values[layer], attn_mask=self.mask)


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
    """Minus infinity on every key behind a row's own position. [rows] -> [rows, 1, 1, span]"""
    behind = torch.arange(span, device=positions.device) > positions[:, None]
    mask = torch.zeros(len(positions), 1, 1, span, device=positions.device)
    return mask.masked_fill_(behind[:, None, None], float("-inf"))
