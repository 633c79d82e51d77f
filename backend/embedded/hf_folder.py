"""Read a dense Llama or Qwen3 target from a folder in Hugging Face form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from backend.embedded.checkpoint import parse_rope_scaling
from backend.embedded.config import TargetConfig, choose_taps
from backend.embedded.model_name import name_model
from backend.embedded.pair_check import check_target, read_model_config
from backend.embedded.text import Text
from backend.embedded.weight_files import iterate_tensors
from backend.embedded.weights import Matrix, TargetWeights, interleave_rotary

LONGEST_CONTEXT = 8192  # tokens; every request sets the memory of a whole context aside
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


def read_config(folder: Path) -> TargetConfig:
    """The target's shape. Refuses by name whatever the engine cannot run, before any weight is read."""
    raw = read_model_config(folder)
    check_target(name_model(folder), raw)
    heads, layers, hidden = int(raw["num_attention_heads"]), int(raw["num_hidden_layers"]), int(raw["hidden_size"])
    return TargetConfig(
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(raw.get("head_dim") or hidden // heads),
        intermediate_size=int(raw["intermediate_size"]),
        vocab_size=int(raw["vocab_size"]),
        rms_norm_eps=float(raw["rms_norm_eps"]),
        rope_theta=float(raw.get("rope_theta") or (raw.get("rope_parameters") or {}).get("rope_theta", 10000.0)),
        context_length=min(int(raw["max_position_embeddings"]), LONGEST_CONTEXT),
        taps=choose_taps(layers),
        qk_norm=raw["architectures"][0] == "Qwen3ForCausalLM",
        rope_scaling=parse_rope_scaling(raw),
    )


def read_weights(folder: Path) -> TargetWeights:
    """All weights as they are stored, rotary rows interleaved as the engine wants them."""
    config = read_config(folder)
    matrices: dict[str, Matrix] = {}
    norms: dict[str, Tensor] = {}
    plain: dict[str, Tensor] = {}
    for full_name, stored in iterate_tensors(folder):
        name = full_name.removeprefix("model.").removesuffix(".weight")
        tensor = _order_rotary(name, _as_computed(stored), config)
        if name in ("embed_tokens", "lm_head"):
            plain[name] = tensor
        elif tensor.dim() == 1:
            norms[name] = tensor.float()
        else:
            matrices[name] = tensor
    tied = bool(read_model_config(folder).get("tie_word_embeddings"))
    return TargetWeights(config, matrices, norms, plain["embed_tokens"], None if tied else plain.get("lm_head"))


def read_text(folder: Path) -> Text:
    """Tokenizer, chat template and stop ids that the model ships."""
    settings = _read_json(folder, "tokenizer_config.json")
    tokenizer_file = folder / "tokenizer.json"
    if not tokenizer_file.is_file():
        raise FileNotFoundError(f"{folder} lacks tokenizer.json; the embedded engine needs the fast tokenizer's file.")
    special = {name: _token_text(settings[name]) for name in SPECIAL_TOKENS if settings.get(name)}
    return Text(
        Tokenizer.from_file(str(tokenizer_file)),
        _read_template(folder, settings),
        _read_eos_ids(folder),
        special,
    )


def _read_template(folder: Path, settings: Mapping[str, Any]) -> str:
    separate = folder / "chat_template.jinja"
    template = separate.read_text() if separate.is_file() else settings.get("chat_template")
    if isinstance(template, list):
        template = next((item["template"] for item in template if item["name"] == "default"), None)
    if not template:
        raise ValueError(f"{folder} has no chat template; give an instruction-tuned model.")
    return str(template)


def _read_eos_ids(folder: Path) -> tuple[int, ...]:
    for name in ("generation_config.json", "config.json"):
        if (folder / name).is_file():
            eos = _read_json(folder, name).get("eos_token_id")
            if eos is not None:
                return tuple(eos) if isinstance(eos, list) else (int(eos),)
    raise ValueError(f"{folder} names no eos_token_id in generation_config.json or config.json.")


def _order_rotary(name: str, tensor: Tensor, config: TargetConfig) -> Tensor:
    if name.endswith("q_proj"):
        return interleave_rotary(tensor, config.num_heads)
    if name.endswith("k_proj"):
        return interleave_rotary(tensor, config.num_kv_heads)
    if name.endswith(("q_norm", "k_norm")):
        return interleave_rotary(tensor, 1)
    return tensor


def _as_computed(tensor: Tensor) -> Tensor:
    """bfloat16 and float32 as they are; float16 has digits that bfloat16 lacks."""
    return tensor if tensor.dtype in {torch.bfloat16, torch.float32} else tensor.float()


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    if not path.is_file():
        raise FileNotFoundError(f"{folder} lacks {name}; it must be a model folder in Hugging Face form.")
    contents: dict[str, Any] = json.loads(path.read_text())
    return contents


def _token_text(token: object) -> str:
    return str(token["content"]) if isinstance(token, dict) else str(token)
