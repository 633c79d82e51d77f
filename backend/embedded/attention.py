"""Keys and values of one request, and attention over them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 64  # attention spans are rounded up to this many positions


class KVCache:
    """Keys and values of every layer in float32, allocated once for the whole context.

    float32, because CPUs attend faster in it than in bfloat16, which they must widen at every step. The operating
    system backs the memory page by page as it is written, so an unused context costs nothing.
    """

    def __init__(self, num_layers: int, num_kv_heads: int, head_dim: int, capacity: int) -> None:
        padded = -(-capacity // BLOCK) * BLOCK
        self.capacity = capacity
        # Zeroed: padded positions are masked, but a stray NaN there would survive the mask.
        self.keys = torch.zeros(num_layers, num_kv_heads, padded, head_dim).unbind()
        self.values = torch.zeros(num_layers, num_kv_heads, padded, head_dim).unbind()

    def write(self, layer: int, start: int, keys: Tensor, values: Tensor) -> None:
        """Store rows from position `start` on. keys, values: [rows, kv_heads, dim]"""
        end = start + keys.shape[0]
        self.keys[layer][:, start:end] = keys.transpose(0, 1)
        self.values[layer][:, start:end] = values.transpose(0, 1)


class RowAttention:
    """Attention in which every row is a batch entry of its own, over a span that depends on its position alone.

    A row therefore runs through the same instructions whether it is decoded alone or verified beside others:
    that, with the row-wise matmuls, makes greedy decoding with a draft bit-exact. Rows whose spans differ
    (a step that crosses a multiple of BLOCK) are computed in two calls.
    """

    def __init__(self, cache: KVCache, start: int, rows: int) -> None:
        """The rows stand at positions start, start + 1, ..."""
        self._cache = cache
        self._start = start
        self._groups: list[tuple[slice, int, Tensor]] = []
        first = 0
        while first < rows:
            span = (start + first) // BLOCK * BLOCK + BLOCK
            last = min(rows, span - start)
            mask = mask_after(torch.arange(start + first, start + last), span)
            self._groups.append((slice(first, last), span, mask))
            first = last

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """queries: [rows, heads, dim]; keys, values: [rows, kv_heads, dim] -> [rows, heads * dim] float32"""
        self._cache.write(layer, self._start, keys, values)
        rows, heads, dim = queries.shape
        kv_heads = keys.shape[1]
        grouped = queries.view(rows, kv_heads, heads // kv_heads, dim)
        outputs = []
        for group, span, mask in self._groups:
            count = group.stop - group.start
            seen_keys = self._cache.keys[layer][:, :span].expand(count, -1, -1, -1)  # [group, kv_heads, span, dim]
            seen_values = self._cache.values[layer][:, :span].expand(count, -1, -1, -1)
            outputs.append(F.scaled_dot_product_attention(grouped[group], seen_keys, seen_values, attn_mask=mask))
        joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return joined.reshape(rows, heads * dim)


def mask_after(positions: Tensor, span: int) -> Tensor:
    """Minus infinity on every key behind a row's own position. [rows] -> [rows, 1, 1, span]"""
    behind = torch.arange(span) > positions[:, None]
    return torch.zeros(len(positions), 1, 1, span).masked_fill_(behind[:, None, None], float("-inf"))
