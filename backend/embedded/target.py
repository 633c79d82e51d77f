"""The target: a dense Llama (or Qwen3) forward over a KV cache, tapping the hidden states that the draft reads."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.embedded.attention import KVCache, RowAttention
from backend.embedded.config import TargetConfig
from backend.embedded.linear import Dtype, Linear, activation_dtype, pack, rms_norm
from backend.embedded.rotary import make_rotations, rotate_
from backend.embedded.weights import TargetWeights, stack_rows


class Attention(Protocol):
    """Stores the rows' keys and values, and attends over all that the rows may see."""

    def __call__(self, layer: int, queries: Tensor, keys_and_values: Tensor, /) -> Tensor:
        """queries: [rows, heads, dim]; keys_and_values: [rows, 2 * kv_heads, dim], keys first -> [rows, heads * dim]"""
        ...


@dataclass(frozen=True)
class TargetLayer:
    """One decoder layer, packed. Its fields are tensors and linears, or None where the family has no such part."""

    input_norm: Tensor
    qkv: Linear
    output: Linear
    post_norm: Tensor
    gate_up: Linear
    down: Linear
    query_norm: Tensor | None = None  # [head_dim], Qwen3 only
    key_norm: Tensor | None = None


@dataclass(frozen=True)
class Hidden:
    """What a forward leaves behind. last: [rows, hidden] before the final norm; taps: [rows, num_taps * hidden]

    `taps` is None where they were not asked for: a baseline does not pay for what it does not use.
    """

    last: Tensor
    taps: Tensor | None


class Target:
    """The full model. Rows are token positions of one request; there is no batch dimension."""

    def __init__(
        self,
        config: TargetConfig,
        dtype: Dtype,
        layers: list[TargetLayer],
        embedding: Tensor,
        final_norm: Tensor,
        head: Linear,
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.layers = layers
        self.embedding = embedding  # [vocab, hidden]
        self.final_norm = final_norm
        self.head = head
        self.activation = activation_dtype(dtype)
        rotations = make_rotations(config.head_dim, config.context_length, config.rope_theta, config.rope_scaling)
        self.rotations = rotations.to(self.device)

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    def to(self, device: torch.device) -> Target:
        """The same target on another device."""
        return Target(
            self.config,
            self.dtype,
            [_move_layer(layer, device) for layer in self.layers],
            self.embedding.to(device),
            self.final_norm.to(device),
            self.head.to(device),
        )

    def new_cache(self, capacity: int | None = None) -> KVCache:
        config = self.config
        return KVCache(
            config.num_layers,
            config.num_kv_heads,
            config.head_dim,
            capacity or config.context_length,
            self.device,
        )

    def embed(self, ids: Tensor) -> Tensor:
        """[rows] -> [rows, hidden]"""
        return F.embedding(ids, self.embedding)

    def forward(self, ids: Tensor, start: int, cache: KVCache, *, tap: bool = True) -> Hidden:
        """Run one request's rows at positions start, start + 1, ... over its cache. ids: [rows]"""
        rows = ids.shape[0]
        attend = RowAttention(cache, self.config.num_heads, start, rows)
        return self.run(ids, self.rotations[start : start + rows], attend, tap=tap)

    def run(self, ids: Tensor, rotations: Tensor, attend: Attention, *, tap: bool = True) -> Hidden:
        """All layers over any rows. ids: [rows]; rotations: [rows, 1, head_dim / 2]"""
        hidden = self.embed(ids)  # [rows, hidden]
        taps = []
        for index, layer in enumerate(self.layers):
            if tap and index in self.config.taps:
                taps.append(hidden)
            hidden = hidden + self._attention(layer, index, hidden, rotations, attend)
            hidden = hidden + self._mlp(layer, hidden)
        return Hidden(hidden, torch.cat(taps, dim=-1) if tap else None)

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> [rows, vocab]"""
        return self.head.after_norm(hidden, self.final_norm, self.config.rms_norm_eps)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight, self.config.rms_norm_eps)

    def _attention(
        self, layer: TargetLayer, index: int, hidden: Tensor, rotations: Tensor, attend: Attention
    ) -> Tensor:
        config = self.config
        qkv = layer.qkv.after_norm(hidden, layer.input_norm, config.rms_norm_eps)
        heads = qkv.view(hidden.shape[0], -1, config.head_dim)  # [rows, heads + 2 * kv_heads, dim]
        if layer.query_norm is not None and layer.key_norm is not None:
            groups = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
            raw_queries, raw_keys, raw_values = torch.split(heads, groups, dim=1)
            queries, keys = self._norm(raw_queries, layer.query_norm), self._norm(raw_keys, layer.key_norm)
            heads = torch.cat([queries, keys, raw_values], dim=1)
        heads = heads.float()
        rotate_(heads[:, : config.num_heads + config.num_kv_heads], rotations)
        queries, keys_and_values = heads.split_with_sizes([config.num_heads, 2 * config.num_kv_heads], dim=1)
        return layer.output(attend(index, queries, keys_and_values).to(self.activation))

    def _mlp(self, layer: TargetLayer, hidden: Tensor) -> Tensor:
        gate, up = layer.gate_up.after_norm(hidden, layer.post_norm, self.config.rms_norm_eps).chunk(2, dim=-1)
        return layer.down(F.silu(gate).mul_(up))


def _move_layer(layer: TargetLayer, device: torch.device) -> TargetLayer:
    moved: dict[str, Any] = {}
    for field in fields(layer):
        part = getattr(layer, field.name)
        moved[field.name] = None if part is None else part.to(device)
    return TargetLayer(**moved)


def build_target(weights: TargetWeights, dtype: Dtype) -> Target:
    """Pack every matrix for `dtype`. The embedding stays float: bfloat16, or float32 for fp32."""
    config = weights.config
    activation = activation_dtype(dtype)
    matrices, norms = weights.matrices, weights.norms

    def norm(name: str) -> Tensor | None:
        return norms[name].to(activation) if name in norms else None

    layers = []
    for index in range(config.num_layers):
        prefix = f"layers.{index}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        layers.append(
            TargetLayer(
                input_norm=norms[prefix + "input_layernorm"].to(activation),
                qkv=pack(stack_rows([matrices[attention + name] for name in ("q_proj", "k_proj", "v_proj")]), dtype),
                output=pack(matrices[attention + "o_proj"], dtype),
                post_norm=norms[prefix + "post_attention_layernorm"].to(activation),
                gate_up=pack(stack_rows([matrices[mlp + name] for name in ("gate_proj", "up_proj")]), dtype),
                down=pack(matrices[mlp + "down_proj"], dtype),
                query_norm=norm(attention + "q_norm"),
                key_norm=norm(attention + "k_norm"),
            )
        )
    embedding = weights.embedding.to(activation)
    head = pack(weights.embedding if weights.head is None else weights.head, dtype)
    return Target(config, dtype, layers, embedding, norms["norm"].to(activation), head)
