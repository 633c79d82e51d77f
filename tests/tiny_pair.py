"""A tiny random target and EAGLE-3 draft: the real engine, at a size where thousands of runs are cheap."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, models
from torch import Tensor

from backend.embedded.checkpoint import DraftCheckpoint, parameter_shapes
from backend.embedded.config import DraftConfig, TargetConfig
from backend.embedded.draft import Draft
from backend.embedded.engine import Engine, Names
from backend.embedded.linear import Dtype
from backend.embedded.target import build_target
from backend.embedded.text import Text
from backend.embedded.weights import Matrix, TargetWeights

VOCAB = 64


def tiny_config(vocab: int = VOCAB, context: int = 256) -> TargetConfig:
    return TargetConfig(
        num_layers=4,
        hidden_size=64,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        intermediate_size=128,
        vocab_size=vocab,
        rms_norm_eps=1e-5,
        rope_theta=10_000.0,
        context_length=context,
        taps=(1, 2, 3),
    )


def tiny_weights(config: TargetConfig, seed: int = 0, head_scale: float = 1.0) -> TargetWeights:
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> Tensor:
        random: Tensor = torch.randn(rows, columns, generator=generator) / columns**0.5
        return random

    width, queries, keys = config.hidden_size, config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    matrices: dict[str, Matrix] = {}
    norms = {"norm": torch.ones(width)}
    for layer in range(config.num_layers):
        prefix = f"layers.{layer}."
        matrices |= {
            prefix + "self_attn.q_proj": matrix(queries, width),
            prefix + "self_attn.k_proj": matrix(keys, width),
            prefix + "self_attn.v_proj": matrix(keys, width),
            prefix + "self_attn.o_proj": matrix(width, queries),
            prefix + "mlp.gate_proj": matrix(config.intermediate_size, width),
            prefix + "mlp.up_proj": matrix(config.intermediate_size, width),
            prefix + "mlp.down_proj": matrix(width, config.intermediate_size),
        }
        norms |= {prefix + "input_layernorm": torch.ones(width), prefix + "post_attention_layernorm": torch.ones(width)}
    embedding = torch.randn(config.vocab_size, width, generator=generator)
    head = head_scale * torch.randn(config.vocab_size, width, generator=generator)
    return TargetWeights(config, matrices, norms, embedding, head)


def tiny_draft_config(config: TargetConfig) -> DraftConfig:
    return DraftConfig(
        num_layers=1,
        hidden_size=config.hidden_size,
        target_hidden_size=config.hidden_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        draft_vocab_size=config.vocab_size // 2,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=config.rope_theta,
        num_taps=3,
        fc_norm=True,
    )


def tiny_checkpoint(config: TargetConfig, seed: int = 1) -> DraftCheckpoint:
    """A random head over every second target id."""
    generator = torch.Generator().manual_seed(seed)
    draft = tiny_draft_config(config)
    tensors = {
        name: torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) / shape[1] ** 0.5
        for name, shape in parameter_shapes(draft).items()
    }
    return DraftCheckpoint(draft, tensors, torch.arange(0, config.vocab_size, 2), config.taps)


def tiny_text(vocab: int) -> Text:
    words = {f"w{index}": index for index in range(vocab)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    return Text(tokenizer, "{% for m in messages %}{{ m['content'] }}{% endfor %}", (vocab - 1,), {})


def tiny_engine(
    dtype: Dtype = "int4", *, vocab: int = VOCAB, context: int = 256, num_steps: int = 3, head_scale: float = 1.0
) -> Engine:
    config = tiny_config(vocab, context)
    target = build_target(tiny_weights(config, head_scale=head_scale), dtype)
    draft = Draft(tiny_checkpoint(config), dtype, context)
    return Engine(target, draft, tiny_text(vocab), Names("tiny", "tiny draft"), num_steps=num_steps)
