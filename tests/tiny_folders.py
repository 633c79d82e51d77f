"""Tiny random targets and EAGLE-3 drafts as folders in Hugging Face form; the targets are made by transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from backend.embedded.checkpoint import parameter_shapes, save_checkpoint
from backend.embedded.config import DraftConfig

Family = Literal["llama", "llama-stretched", "llama-tied", "qwen3"]
FAMILIES: tuple[Family, ...] = ("llama", "llama-stretched", "llama-tied", "qwen3")

VOCAB = 256
HIDDEN = 128
LAYERS = 8
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 32
END_OF_TEXT = VOCAB - 1
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
STRETCH = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,  # small, so that the prompts of a test are stretched
}


def make_target(family: Family, seed: int = 0, spread: float = 0.15) -> Any:
    """A random model of transformers, in float32. `spread`: standard deviation of its matrices."""
    from transformers import (  # noqa: PLC0415  slow to import
        LlamaConfig,
        LlamaForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    shape: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 512,
        "bos_token_id": 0,
        "eos_token_id": END_OF_TEXT,
        "pad_token_id": None,
        "tie_word_embeddings": family == "llama-tied",
        "initializer_range": spread,
    }
    if family == "llama-stretched":
        shape["rope_parameters"] = STRETCH
    torch.manual_seed(seed)
    model: Any = Qwen3ForCausalLM(Qwen3Config(**shape)) if family == "qwen3" else LlamaForCausalLM(LlamaConfig(**shape))
    randomise_norms(model)
    return model.eval()


def randomise_norms(model: Any) -> None:
    """Fresh models have norms of ones, which would hide a norm that is left out."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)


def write_target(folder: Path, model: Any, *, shard_size: str = "1GB") -> Path:
    """Weights, config, tokenizer (id i is the word `wi`) and chat template."""
    model.save_pretrained(folder, max_shard_size=shard_size)
    words = {f"w{index}": index for index in range(VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": CHAT_TEMPLATE, "eos_token": "w255"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def write_draft(folder: Path, model: Any, seed: int = 1, spread: float = 0.01) -> Path:
    """A head that repeats what the last tap says, blurred by random matrices of standard deviation `spread`.

    Beside a target with tied embeddings, whose tokens like to repeat, some of its drafts are accepted and some are not.
    """
    config = DraftConfig(
        num_layers=1,
        hidden_size=HIDDEN,
        target_hidden_size=HIDDEN,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        intermediate_size=2 * HIDDEN,
        vocab_size=VOCAB,
        draft_vocab_size=3 * VOCAB // 4,
        rms_norm_eps=1e-6,
        rope_theta=10_000.0,
        num_taps=3,
    )
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: torch.ones(shape) if len(shape) == 1 else spread * torch.randn(shape, generator=generator)
        for name, shape in parameter_shapes(config).items()
    }
    ids = torch.arange(VOCAB)
    target_ids = ids[ids % 4 > 0]
    tensors["fc.weight"][:, 2 * HIDDEN :] += torch.eye(HIDDEN)
    tensors["norm.weight"] = model.model.norm.weight.detach()
    tensors["lm_head.weight"] = model.lm_head.weight.detach()[target_ids]
    save_checkpoint(folder, config, tensors, target_ids)
    return folder
