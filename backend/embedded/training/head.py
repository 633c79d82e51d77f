"""The EAGLE-3 head as a trainable module, with the paper's training-time test (section 3.2).

Training unrolls the drafting loop: at step 0 a row reads the target's taps, at step j > 0 the hidden state that
the head itself left at step j - 1. Parameter names are the checkpoint's (`midlayer.*`, `fc`, `norm`, ...).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backend.embedded.config import DraftConfig
from backend.embedded.training.taps import TappedConversation


@dataclass(frozen=True)
class StepResult:
    """One unrolled draft step over all rows with a label: mean loss, and which rows the draft got right."""

    loss: Tensor
    correct: Tensor  # [labelled rows] bool: the draft's argmax is the target's argmax
    rows: Tensor  # [labelled rows] index of the row, to chain the steps


class _Attention(nn.Module):
    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        width, dim = config.hidden_size, config.head_dim
        self.q_proj = nn.Linear(2 * width, config.num_heads * dim, bias=False)
        self.k_proj = nn.Linear(2 * width, config.num_kv_heads * dim, bias=False)
        self.v_proj = nn.Linear(2 * width, config.num_kv_heads * dim, bias=False)
        self.o_proj = nn.Linear(config.num_heads * dim, width, bias=False)


class _Mlp(nn.Module):
    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        down: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return down


class _MidLayer(nn.Module):
    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = _Attention(config)
        self.mlp = _Mlp(config)


class TrainableHead(nn.Module):
    """One-layer EAGLE-3 head over a frozen target embedding."""

    def __init__(self, config: DraftConfig, embedding: Tensor, draft_of_target: Tensor) -> None:
        """embedding: [vocab, hidden]; draft_of_target: [vocab] draft id of each target id, -1 where it has none."""
        super().__init__()
        self.config = config
        self.embedding = embedding
        self.draft_of_target = draft_of_target
        self.fc_norm = nn.ModuleList(
            nn.RMSNorm(config.target_hidden_size, config.rms_norm_eps) for _ in range(config.num_taps)
        )
        self.fc = nn.Linear(config.num_taps * config.target_hidden_size, config.hidden_size, bias=False)
        self.midlayer = _MidLayer(config)
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)

    def unroll(self, batch: Sequence[TappedConversation], steps: int) -> list[StepResult]:
        """Draft `steps` tokens from every row that predicts an answer token.

        A row is a position t with its taps and the token at t + 1. Step j predicts the token at t + 2 + j.
        """
        rows = _Rows(batch)
        fused = self._fuse(rows.taps)  # [all rows, hidden]
        embedded = F.embedding(rows.shifted_ids(1), self.embedding)
        attention = _UnrolledAttention(self.midlayer.self_attn, self.config, rows)
        attention.store_prefix(self._attention_input(embedded, fused), rows.positions)
        hidden = fused[rows.active]  # [active, hidden]
        results = []
        for step in range(steps):
            embedded = F.embedding(rows.shifted_ids(1 + step)[rows.active], self.embedding)
            mixed = attention(self._attention_input(embedded, hidden), step)
            hidden = hidden + mixed
            hidden = hidden + self.midlayer.mlp(self.midlayer.post_attention_layernorm(hidden))
            results.append(self._judge(hidden, rows, step))
        return results

    def _fuse(self, taps: Tensor) -> Tensor:
        chunks = taps.float().chunk(self.config.num_taps, dim=-1)
        fused: Tensor = self.fc(torch.cat([norm(chunk) for norm, chunk in zip(self.fc_norm, chunks, strict=True)], -1))
        return fused

    def _attention_input(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        return torch.cat([self.midlayer.input_layernorm(embedded), self.midlayer.hidden_norm(hidden)], dim=-1)

    def _judge(self, hidden: Tensor, rows: _Rows, step: int) -> StepResult:
        labelled = rows.labelled(step)  # indices into the active rows
        label_rows = rows.active[labelled] + 1 + step
        logits = self.lm_head(self.norm(hidden[labelled]))  # [labelled, draft vocab]
        target_ids = rows.top_ids[label_rows]
        draft_ids = self.draft_of_target[target_ids]  # [labelled, TOP]
        weights = rows.top_probabilities[label_rows] * (draft_ids >= 0)
        log_q = logits.log_softmax(-1).gather(-1, draft_ids.clamp_min(0))
        loss = -(weights * log_q).sum() / max(len(labelled), 1)
        correct = logits.detach().argmax(-1) == draft_ids[:, 0]
        return StepResult(loss, correct, labelled)


class _Rows:
    """A batch of conversations laid end to end, without padding."""

    def __init__(self, batch: Sequence[TappedConversation]) -> None:
        self.lengths = [len(item.ids) for item in batch]
        self.ids = torch.cat([item.ids for item in batch])
        self.taps = torch.cat([item.taps for item in batch])
        self.top_ids = torch.cat([item.top_ids for item in batch])
        self.top_probabilities = torch.cat([item.top_probabilities for item in batch])
        self.positions = torch.cat([torch.arange(length) for length in self.lengths])
        self.ends = torch.cat([torch.full((length,), length) for length in self.lengths])
        self.active_starts = [min(max(item.answer_start - 2, 0), len(item.ids)) for item in batch]
        starts = torch.cat([torch.full((n,), first) for n, first in zip(self.lengths, self.active_starts, strict=True)])
        self.active = (self.positions >= starts).nonzero().squeeze(-1)
        self._room = (self.ends - self.positions)[self.active]

    def shifted_ids(self, shift: int) -> Tensor:
        """The token `shift` places on; past the end of the batch, id 0 (those rows carry no label)."""
        return F.pad(self.ids[shift:], (0, shift))

    def labelled(self, step: int) -> Tensor:
        """Active rows whose label, the target's choice after position t + 1 + step, lies inside the conversation."""
        return (self._room > 2 + step).nonzero().squeeze(-1)


class _UnrolledAttention:
    """Attention of the unrolled steps: the prefix's keys of step 0, then one key per later step, on the diagonal."""

    def __init__(self, module: _Attention, config: DraftConfig, rows: _Rows) -> None:
        self._module = module
        self._config = config
        self._rows = rows
        dim = config.head_dim
        self._frequency = config.rope_theta ** (-torch.arange(0, dim, 2).float() / dim)
        self._later_keys: list[Tensor] = []
        self._later_values: list[Tensor] = []

    def store_prefix(self, x: Tensor, positions: Tensor) -> None:
        keys, values = self._keys_and_values(x, positions)
        self._prefix_keys = torch.split(keys, self._rows.lengths)
        self._prefix_values = torch.split(values, self._rows.lengths)

    def __call__(self, x: Tensor, step: int) -> Tensor:
        """x: [active, 2 * hidden] -> [active, hidden]"""
        config, rows = self._config, self._rows
        positions = rows.positions[rows.active] + step
        queries = self._turn(self._module.q_proj(x).view(-1, config.num_heads, config.head_dim), positions)
        if step > 0:
            keys, values = self._keys_and_values(x, positions)
            self._later_keys.append(keys)
            self._later_values.append(values)
        active_lengths = [n - first for n, first in zip(rows.lengths, rows.active_starts, strict=True)]
        later_keys = [torch.split(keys, active_lengths) for keys in self._later_keys]
        later_values = [torch.split(values, active_lengths) for values in self._later_values]
        attended = [
            self._attend_one(
                part,
                self._prefix_keys[index],
                self._prefix_values[index],
                [keys[index] for keys in later_keys],
                [values[index] for values in later_values],
                rows.active_starts[index],
            )
            for index, part in enumerate(torch.split(queries, active_lengths))
        ]
        mixed: Tensor = self._module.o_proj(torch.cat(attended))
        return mixed

    def _attend_one(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        later_keys: list[Tensor],
        later_values: list[Tensor],
        first: int,
    ) -> Tensor:
        """queries: [active, heads, dim]; keys, values: [length, kv_heads, dim]; later: [active, kv_heads, dim] each"""
        active, heads, dim = queries.shape
        length, kv_heads, _ = keys.shape
        grouped = queries.view(active, kv_heads, heads // kv_heads, dim).permute(1, 2, 0, 3)  # [kv, group, active, dim]
        scores = grouped @ keys.permute(1, 2, 0)[:, None] / dim**0.5  # [kv, group, active, length]
        hidden = torch.arange(length) > torch.arange(first, first + active)[:, None]
        scores = scores.masked_fill(hidden, float("-inf"))
        diagonal = [(grouped * key.transpose(0, 1)[:, None]).sum(-1, keepdim=True) / dim**0.5 for key in later_keys]
        weights = torch.cat([scores, *diagonal], dim=-1).softmax(-1)
        attended = weights[..., :length] @ values.transpose(0, 1)[:, None]
        for offset, value in enumerate(later_values):
            attended = attended + weights[..., length + offset, None] * value.transpose(0, 1)[:, None]
        return attended.permute(2, 0, 1, 3).reshape(active, heads * dim)

    def _keys_and_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        config = self._config
        keys = self._module.k_proj(x).view(-1, config.num_kv_heads, config.head_dim)
        values = self._module.v_proj(x).view(-1, config.num_kv_heads, config.head_dim)
        return self._turn(keys, positions), values

    def _turn(self, heads: Tensor, positions: Tensor) -> Tensor:
        angle = positions[:, None, None].float() * self._frequency  # [rows, 1, dim / 2]
        cos, sin = angle.cos(), angle.sin()
        first, second = heads.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
