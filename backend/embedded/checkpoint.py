"""An EAGLE-3 draft checkpoint on disk, in the form SGLang loads: `config.json` and `model.safetensors`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from backend.embedded.config import DraftConfig, RopeScaling
from backend.embedded.model_name import name_model
from backend.embedded.pair_check import check_draft, read_model_config
from backend.embedded.weight_files import iterate_tensors

ARCHITECTURE = "LlamaForCausalLMEagle3"
ACCEPTANCE_KEY = "held_out_acceptance"  # of the config; other programs ignore it
NOT_PARAMETERS = ("d2t", "t2d")
LEGACY_NAMES = {
    "layers.0.": "midlayer.",
    "aux_norm_low": "fc_norm.0",
    "aux_norm_mid": "fc_norm.1",
    "aux_norm_high": "fc_norm.2",
}


@dataclass(frozen=True)
class DraftCheckpoint:
    """config; tensors by checkpoint name; target_ids: [draft vocab] the target id of each draft id.

    `tap_layers` are the layers whose inputs are tapped; None: the default for the target's depth.
    `acceptance`: share of steps in which the first j + 1 drafts are all accepted, as measured when it was trained;
    empty where the checkpoint does not tell.
    """

    config: DraftConfig
    tensors: Mapping[str, Tensor]
    target_ids: Tensor
    tap_layers: tuple[int, ...] | None
    acceptance: tuple[float, ...] = ()


def parameter_shapes(config: DraftConfig) -> dict[str, tuple[int, ...]]:
    """Every parameter that SGLang's `LlamaForCausalLMEagle3` takes from a checkpoint of this config."""
    width, dim = config.hidden_size, config.head_dim
    fused = config.num_taps * config.target_hidden_size
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (width, fused), "norm.weight": (width,)}
    shapes["lm_head.weight"] = (config.draft_vocab_size, width)
    if config.norm_before_fc:
        shapes["input_norm.weight"] = (fused,)
    if config.fc_norm:
        shapes |= {f"fc_norm.{tap}.weight": (config.target_hidden_size,) for tap in range(config.num_taps)}
    for layer in range(config.num_layers):
        prefix = layer_prefix(layer)
        read = 2 * width if layer == 0 else width
        norms = ["hidden_norm", "post_attention_layernorm"] + (["input_layernorm"] if layer == 0 else [])
        shapes |= {f"{prefix}{name}.weight": (width,) for name in norms}
        shapes |= {
            f"{prefix}self_attn.q_proj.weight": (config.num_heads * dim, read),
            f"{prefix}self_attn.k_proj.weight": (config.num_kv_heads * dim, read),
            f"{prefix}self_attn.v_proj.weight": (config.num_kv_heads * dim, read),
            f"{prefix}self_attn.o_proj.weight": (width, config.num_heads * dim),
            f"{prefix}mlp.gate_proj.weight": (config.intermediate_size, width),
            f"{prefix}mlp.up_proj.weight": (config.intermediate_size, width),
            f"{prefix}mlp.down_proj.weight": (width, config.intermediate_size),
        }
    return shapes


def layer_prefix(layer: int) -> str:
    """Only the first layer is called `midlayer`; further ones are `layers.N`."""
    return "midlayer." if layer == 0 else f"layers.{layer}."


def load_checkpoint(folder: Path) -> DraftCheckpoint:
    """Read a draft and refuse, by name, whatever does not fit its config."""
    raw = read_model_config(folder)
    check_draft(name_model(folder), raw)
    tensors = {_current_name(name): tensor for name, tensor in iterate_tensors(folder)}
    config = parse_config(raw, tensors)
    check_tensors(config, tensors)
    layer_ids = (raw.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    return DraftCheckpoint(
        config=config,
        tensors=tensors,
        target_ids=_target_ids(config, tensors),
        # SGLang's ids are one less than the layer whose input is tapped.
        tap_layers=tuple(layer + 1 for layer in layer_ids) if layer_ids else None,
        acceptance=tuple(float(share) for share in raw.get(ACCEPTANCE_KEY, ())),
    )


def check_tensors(config: DraftConfig, tensors: Mapping[str, Tensor]) -> None:
    """Every tensor must be one that is read, in its shape, and none may lack: SGLang skips unknown names in silence."""
    expected = parameter_shapes(config)
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items() if name not in NOT_PARAMETERS}
    found.pop("embed_tokens.weight", None)  # some drafts carry a copy of the target's embedding
    missing = sorted(expected.keys() - found.keys())
    unknown = sorted(found.keys() - expected.keys())
    misshapen = sorted(name for name in expected.keys() & found.keys() if expected[name] != found[name])
    if missing or unknown or misshapen:
        raise ValueError(
            "The draft checkpoint does not fit its config: "
            f"missing {missing}, unknown {unknown}, wrong shape {misshapen}."
        )


def save_checkpoint(
    folder: Path,
    config: DraftConfig,
    tensors: Mapping[str, Tensor],
    target_ids: Tensor,
    acceptance: Sequence[float] = (),
) -> None:
    """Write a one- or many-layer head in bfloat16, with `d2t` as offsets, so that SGLang takes every tensor."""
    check_tensors(config, tensors)
    folder.mkdir(parents=True, exist_ok=True)
    vocab = torch.zeros(config.vocab_size, dtype=torch.bool)
    vocab[target_ids] = True
    contents = {name: tensor.detach().bfloat16().contiguous() for name, tensor in tensors.items()}
    contents["d2t"] = target_ids - torch.arange(len(target_ids))
    contents["t2d"] = vocab
    partial = folder / "model.safetensors.partial"
    save_file(contents, partial, metadata={"format": "pt"})
    partial.replace(folder / "model.safetensors")
    (folder / "config.json").write_text(
        json.dumps(_describe(config) | {ACCEPTANCE_KEY: list(acceptance)}, indent=1) + "\n"
    )


def parse_config(raw: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> DraftConfig:
    """Read the fields as SGLang does; the number of taps follows from `fc` where the config is silent."""
    heads, hidden = int(raw["num_attention_heads"]), int(raw["hidden_size"])
    target_hidden = int(raw.get("target_hidden_size") or hidden)
    eagle = raw.get("eagle_config") or {}
    vocab = int(raw["vocab_size"])
    return DraftConfig(
        num_layers=int(raw.get("num_hidden_layers", 1)),
        hidden_size=hidden,
        target_hidden_size=target_hidden,
        num_heads=heads,
        num_kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(raw.get("head_dim") or hidden // heads),
        intermediate_size=int(raw["intermediate_size"]),
        vocab_size=vocab,
        draft_vocab_size=int(raw.get("draft_vocab_size") or vocab),
        rms_norm_eps=float(raw["rms_norm_eps"]),
        rope_theta=float(raw.get("rope_theta") or (raw.get("rope_parameters") or {}).get("rope_theta", 10000.0)),
        num_taps=tensors["fc.weight"].shape[1] // target_hidden if "fc.weight" in tensors else 3,
        fc_norm=bool(raw.get("fc_norm") or raw.get("use_aux_norm")),
        norm_before_fc=bool(eagle.get("norm_before_fc", raw.get("norm_before_fc", False))),
        norm_output=bool(raw.get("norm_output")),
        rope_scaling=parse_rope_scaling(raw),
    )


def parse_rope_scaling(raw: Mapping[str, Any]) -> RopeScaling | None:
    """Llama 3's scaling, or none; any other kind is refused by name."""
    scaling = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return None
    if kind != "llama3":
        raise ValueError(f"Rotary scaling '{kind}' is not supported by the embedded engine (only 'llama3').")
    return RopeScaling(
        factor=float(scaling["factor"]),
        low_freq_factor=float(scaling["low_freq_factor"]),
        high_freq_factor=float(scaling["high_freq_factor"]),
        original_context=int(scaling["original_max_position_embeddings"]),
    )


def _current_name(name: str) -> str:
    name = name.removeprefix("model.")
    for legacy, current in LEGACY_NAMES.items():
        name = name.replace(legacy, current)
    return name


def _target_ids(config: DraftConfig, tensors: Mapping[str, Tensor]) -> Tensor:
    own = torch.arange(config.draft_vocab_size)
    return own + tensors["d2t"].long() if "d2t" in tensors else own


def _describe(config: DraftConfig) -> dict[str, Any]:
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "target_hidden_size": config.target_hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "num_hidden_layers": config.num_layers,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "fc_norm": config.fc_norm,
        "norm_before_fc": config.norm_before_fc,
        "norm_output": config.norm_output,
        "hidden_act": "silu",
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "bfloat16",
    }
