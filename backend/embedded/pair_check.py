"""Whether the embedded engine can run a target with a draft, read off their configs before any weights are.

Every refusal names the model and what of it cannot be run. Pure: the configs are config.json as mappings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backend.embedded.model_name import name_model

TARGETS = ("LlamaForCausalLM", "Qwen3ForCausalLM")
DRAFT = "LlamaForCausalLMEagle3"
OLDER_DRAFTS = ("LlamaForCausalLMEagle", "EagleLlamaForCausalLM", "EAGLE", "Qwen2ForCausalLMEagle")
PLAIN_SETTINGS = {
    "attention_bias": False,
    "mlp_bias": False,
    "hidden_act": "silu",
    "use_sliding_window": False,
    "partial_rotary_factor": 1.0,
}
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
SCALINGS = ("default", "llama3")
INSTEAD = "Serve it with SGLang instead: --engine sglang."

Config = Mapping[str, Any]


def check_pair(target_name: str, target: Config, draft_name: str, draft: Config) -> None:
    """Raise ValueError, in one sentence for a person, unless the engine runs this target with this draft."""
    check_target(target_name, target)
    check_draft(draft_name, draft)
    hidden, read = int(target["hidden_size"]), read_target_hidden_size(draft)
    if read != hidden:
        raise ValueError(
            f"{draft_name} reads hidden states of {read} values and {target_name} has {hidden}: they are not a pair; "
            "give the draft that was trained for this target with --draft."
        )
    if int(draft["vocab_size"]) != int(target["vocab_size"]):
        raise ValueError(
            f"{draft_name} was trained for a vocabulary of {draft['vocab_size']} tokens and {target_name} has "
            f"{target['vocab_size']}: they are not a pair; give the draft trained for this target with --draft."
        )
    _check_taps(target_name, int(target["num_hidden_layers"]), draft_name, draft)


def check_target(name: str, config: Config) -> None:
    """Raise ValueError unless the engine runs this target."""
    architecture = _name_architecture(config)
    experts = next((config[field] for field in EXPERTS if config.get(field)), None)
    if experts is not None:
        raise ValueError(f"{name} is a mixture of {experts} experts; the embedded engine runs dense models. {INSTEAD}")
    if architecture not in TARGETS:
        raise ValueError(f"{name} is a {architecture}; the embedded engine runs {' and '.join(TARGETS)}. {INSTEAD}")
    _check_settings(name, config)
    if "sliding_attention" in (config.get("layer_types") or ()):
        raise ValueError(f"{name} has layers with a sliding window, which the embedded engine does not run. {INSTEAD}")


def check_draft(name: str, config: Config) -> None:
    """Raise ValueError unless the engine runs this draft: an EAGLE-3 head in SGLang's form."""
    architecture = _name_architecture(config)
    if architecture in OLDER_DRAFTS:
        raise ValueError(
            f"{name} is a {architecture}, a draft of EAGLE-1 or EAGLE-2; the embedded engine runs EAGLE-3 heads "
            f"({DRAFT}). {INSTEAD}"
        )
    if architecture != DRAFT:
        raise ValueError(f"{name} is a {architecture} and no EAGLE-3 draft ({DRAFT}); give one with --draft.")
    _check_settings(name, config)
    if read_target_hidden_size(config) != int(config["hidden_size"]):
        raise ValueError(
            f"{name} is {config['hidden_size']} wide for a target of {read_target_hidden_size(config)}; the embedded "
            f"engine runs drafts as wide as their target. {INSTEAD}"
        )


def check_folders(target: Path | None, draft: Path) -> None:
    """`check_pair` on folders; `target` None or a file: its draft alone is checked. Raises OSError or ValueError."""
    draft_config = read_model_config(draft)
    if target is None or not target.is_dir():
        check_draft(name_model(draft), draft_config)
    else:
        check_pair(name_model(target), read_model_config(target), name_model(draft), draft_config)


def read_model_config(folder: Path) -> Config:
    """A folder's config.json. Raises FileNotFoundError or ValueError, with a sentence for a person."""
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} lacks config.json; it must be a model folder in Hugging Face form.")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no JSON ({error}); download the model again.") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} holds no settings; download the model again.")
    return config


def read_target_hidden_size(draft: Config) -> int:
    """Width of the hidden states that a draft was trained to read."""
    return int(draft.get("target_hidden_size") or draft["hidden_size"])


def _name_architecture(config: Config) -> str:
    return str((config.get("architectures") or ["model without a named architecture"])[0])


def _check_settings(name: str, config: Config) -> None:
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method", "quantised")
        raise ValueError(
            f"{name} is already quantised ({method}); give the embedded engine the unquantised model, which it packs "
            "itself."
        )
    for field, plain in PLAIN_SETTINGS.items():
        value = config.get(field)
        if value is not None and value != plain:
            raise ValueError(f"{name} sets {field} to {value!r}, which the embedded engine does not run. {INSTEAD}")
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind not in SCALINGS:
        raise ValueError(
            f"{name} scales its rotary positions by '{kind}', which the embedded engine does not run. {INSTEAD}"
        )


def _check_taps(target_name: str, layers: int, draft_name: str, draft: Config) -> None:
    ids = (draft.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    # The ids are one less than the layer whose input is tapped; without any, SGLang taps 2, L / 2 and L - 3.
    taps = [2, layers // 2, layers - 3] if ids is None else [int(layer) + 1 for layer in ids]
    if sorted(set(taps)) != taps or taps[0] < 0 or taps[-1] >= layers:
        raise ValueError(
            f"{draft_name} reads the inputs of layers {', '.join(map(str, taps))}, which {target_name} with its "
            f"{layers} layers does not have in this order: they are not a pair."
        )
