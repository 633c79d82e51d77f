"""What a Llama-shaped target and its EAGLE-3 draft look like, as plain values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RopeScaling:
    """Llama-3's long-context stretch of the rotary frequencies (`rope_type: llama3`)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True)
class TargetConfig:
    """A dense Llama or Qwen3 target. `taps` are the layers whose *inputs* the draft sees (EAGLE-3, section 3)."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    context_length: int
    taps: tuple[int, ...]
    qk_norm: bool = False  # Qwen3 normalises each query and key head
    rope_scaling: RopeScaling | None = None


SMOLLM2_135M = TargetConfig(
    num_layers=30,
    hidden_size=576,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    intermediate_size=1536,
    vocab_size=49152,
    rms_norm_eps=1e-5,
    rope_theta=100_000.0,
    context_length=8192,
    taps=(2, 15, 27),
)  # the built-in target, known before its file is read


@dataclass(frozen=True)
class DraftConfig:
    """An EAGLE-3 head as SGLang reads it (`models/llama_eagle3.py`)."""

    num_layers: int
    hidden_size: int
    target_hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    draft_vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    num_taps: int
    fc_norm: bool = False  # normalise each tap before `fc`
    norm_before_fc: bool = False  # normalise all taps as one vector before `fc`
    norm_output: bool = False  # feed the next draft step after the final norm instead of before it
    rope_scaling: RopeScaling | None = None


def choose_taps(num_layers: int) -> tuple[int, int, int]:
    """The layers tapped where a draft's config names none: early, middle, late, as SGLang's `models/llama.py`."""
    return (2, num_layers // 2, num_layers - 3)
