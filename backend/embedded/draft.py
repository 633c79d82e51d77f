"""The EAGLE-3 head at work: fuse the target's taps, draft one token after another (paper, section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.embedded.attention import KVCache, RowAttention
from backend.embedded.checkpoint import DraftCheckpoint, layer_prefix
from backend.embedded.config import DraftConfig
from backend.embedded.linear import Dtype, Linear, activation_dtype, pack, rms_norm
from backend.embedded.rotary import make_rotations, rotate_
from backend.embedded.weights import interleave_rotary


@dataclass(frozen=True)
class DraftLayer:
    """One decoder layer of the head, packed. Only the first reads the token's embedding (`input_norm`)."""

    input_norm: Tensor | None
    hidden_norm: Tensor
    qkv: Linear
    output: Linear
    post_norm: Tensor
    gate_up: Linear
    down: Linear


class Draft:
    """The head. A row at position t holds the hidden state of position t and the token of position t + 1."""

    def __init__(
        self, checkpoint: DraftCheckpoint, dtype: Dtype, context_length: int, device: torch.device | None = None
    ) -> None:
        config, tensors = checkpoint.config, checkpoint.tensors
        self.config: DraftConfig = config
        self.dtype = dtype
        self.activation = activation_dtype(dtype)
        self.target_ids = checkpoint.target_ids.tolist()
        self.device = device or torch.device("cpu")
        rotations = make_rotations(config.head_dim, context_length, config.rope_theta, config.rope_scaling)
        self.rotations = rotations.to(self.device)

        def norm(name: str) -> Tensor:
            return tensors[f"{name}.weight"].to(self.device, self.activation)

        def matrix(*names: str) -> Linear:
            stacked = torch.cat([_rotary_order(name, tensors[f"{name}.weight"], config) for name in names])
            return pack(stacked, dtype).to(self.device)

        self.fc = matrix("fc")
        self.fc_norms = [norm(f"fc_norm.{tap}") for tap in range(config.num_taps)] if config.fc_norm else []
        self.input_norm = norm("input_norm") if config.norm_before_fc else None
        self.layers = []
        for index in range(config.num_layers):
            prefix = layer_prefix(index)
            attention, mlp = prefix + "self_attn.", prefix + "mlp."
            self.layers.append(
                DraftLayer(
                    input_norm=norm(prefix + "input_layernorm") if index == 0 else None,
                    hidden_norm=norm(prefix + "hidden_norm"),
                    qkv=matrix(attention + "q_proj", attention + "k_proj", attention + "v_proj"),
                    output=matrix(attention + "o_proj"),
                    post_norm=norm(prefix + "post_attention_layernorm"),
                    gate_up=matrix(mlp + "gate_proj", mlp + "up_proj"),
                    down=matrix(mlp + "down_proj"),
                )
            )
        self.final_norm = norm("norm")
        self.head = matrix("lm_head")

    def new_cache(self, capacity: int) -> KVCache:
        config = self.config
        return KVCache(config.num_layers, config.num_kv_heads, config.head_dim, capacity, self.device)

    def fuse(self, taps: Tensor) -> Tensor:
        """[rows, num_taps * target hidden] -> [rows, hidden]"""
        taps = taps.to(self.activation)
        if self.input_norm is not None:
            taps = self._norm(taps, self.input_norm)
        if self.fc_norms:
            chunks = taps.chunk(self.config.num_taps, dim=-1)
            taps = torch.cat([self._norm(c, w) for c, w in zip(chunks, self.fc_norms, strict=True)], dim=-1)
        return self.fc(taps)

    def forward(self, embedded: Tensor, hidden: Tensor, start: int, cache: KVCache) -> Tensor:
        """Run rows at positions start, start + 1, ... embedded, hidden: [rows, hidden] -> [rows, hidden]"""
        rows = hidden.shape[0]
        attend = RowAttention(cache, self.config.num_heads, start, rows)
        rotations = self.rotations[start : start + rows]
        for index, layer in enumerate(self.layers):
            x = self._norm(hidden, layer.hidden_norm)
            if layer.input_norm is not None:
                x = torch.cat([self._norm(embedded.to(self.activation), layer.input_norm), x], dim=-1)
            hidden = hidden + self._attention(layer, index, x, rotations, attend)
            gate, up = layer.gate_up.after_norm(hidden, layer.post_norm, self.config.rms_norm_eps).chunk(2, dim=-1)
            hidden = hidden + layer.down(F.silu(gate).mul_(up))
        return hidden

    def propose(self, hidden: Tensor) -> tuple[int, Tensor]:
        """The head's argmax as a target id, and what the next draft step reads. hidden: [1, hidden]"""
        normed = self._norm(hidden, self.final_norm)
        token = self.target_ids[int(self.head(normed).argmax(-1))]
        return token, normed if self.config.norm_output else hidden

    def _attention(self, layer: DraftLayer, index: int, x: Tensor, rotations: Tensor, attend: RowAttention) -> Tensor:
        config = self.config
        heads = layer.qkv(x).view(x.shape[0], -1, config.head_dim).float()  # [rows, heads + 2 * kv_heads, dim]
        rotate_(heads[:, : config.num_heads + config.num_kv_heads], rotations)
        queries, keys_and_values = heads.split_with_sizes([config.num_heads, 2 * config.num_kv_heads], dim=1)
        return layer.output(attend(index, queries, keys_and_values).to(self.activation))

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight, self.config.rms_norm_eps)


def _rotary_order(name: str, weight: Tensor, config: DraftConfig) -> Tensor:
    """Checkpoints keep rotary halves apart; the engine wants pairs side by side."""
    weight = weight.float()
    if name.endswith("q_proj"):
        return interleave_rotary(weight, config.num_heads)
    if name.endswith("k_proj"):
        return interleave_rotary(weight, config.num_kv_heads)
    return weight
