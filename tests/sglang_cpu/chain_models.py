"""A Llama target that counts, and an EAGLE-3 draft that counts with planned mistakes; no training.

Greedy decoding of the target goes t -> t+1. The draft agrees except after a multiple of 5, so with three draft
tokens per verify step the steps keep 4, 1, 4, 1, ... tokens.

Construction. Token t is a point on many circles at once, one angle per frequency, plus two constant components.
Attention and the target's MLPs are zero, so hidden state = embedding, and the head's row v is the embedding of
v-1: the dot product peaks at the successor. The draft's MLP turns every circle by one token (its gate is held
open by the constant components), so its hidden state after t is the one the target would have after t+1, and it
can go on from its own output as EAGLE-3 drafts do. Its head is the target's, with rows 5k and 5k+1 exchanged.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

VOCABULARY = 1024
HIDDEN = 64
LAYERS = 4
CIRCLES = (HIDDEN - 2) // 2
END_OF_TEXT = VOCABULARY - 1
MISTAKE_EVERY = 5
GATE = 10.0  # pre-activation that holds the draft's gate open
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


@dataclass(frozen=True)
class ChainModels:
    """Folders of the two checkpoints."""

    target: Path
    draft: Path


def write_chain_models(folder: Path) -> ChainModels:
    """Write both checkpoints, with the target's tokenizer (id i is the word `wi`), below `folder`."""
    chain = ChainModels(folder / "chain", folder / "chain-eagle3")
    chain.target.mkdir(parents=True)
    chain.draft.mkdir()
    frequencies = _frequencies()
    embeddings = _embeddings(frequencies)
    head = embeddings.roll(1, dims=0)
    _save(chain.target, _target_weights(embeddings, head), {"architectures": ["LlamaForCausalLM"]}, LAYERS)
    draft_config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": VOCABULARY,
        # SGLang's default taps (2, L/2, L-3) need a deeper target than this one.
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "use_aux_hidden_state": True},
    }
    _save(chain.draft, _draft_weights(head, _one_token_turn(frequencies)), draft_config, 1)
    _write_tokenizer(chain.target)
    return chain


def _frequencies() -> torch.Tensor:
    """Distinct whole turns per vocabulary, [CIRCLES]."""
    order = torch.randperm(VOCABULARY // 2 - 1, generator=torch.Generator().manual_seed(7))
    return order[:CIRCLES].double() + 1


def _embeddings(frequencies: torch.Tensor) -> torch.Tensor:
    """[VOCABULARY, HIDDEN]: two ones, then the (cos, sin) of every circle."""
    angles = torch.arange(VOCABULARY).double().outer(frequencies) * (2 * math.pi / VOCABULARY)
    circles = torch.stack((angles.cos(), angles.sin()), dim=-1).flatten(1)
    return torch.cat((torch.ones(VOCABULARY, 2, dtype=torch.float64), circles), dim=1)


def _one_token_turn(frequencies: torch.Tensor) -> torch.Tensor:
    """[HIDDEN, HIDDEN]: maps the embedding of t to that of t+1."""
    turn = torch.eye(HIDDEN, dtype=torch.float64)
    for circle, angle in enumerate((frequencies * (2 * math.pi / VOCABULARY)).tolist()):
        place = slice(2 + 2 * circle, 4 + 2 * circle)
        cos, sin = math.cos(angle), math.sin(angle)
        turn[place, place] = torch.tensor([[cos, -sin], [sin, cos]], dtype=torch.float64)
    return turn


def _target_weights(embeddings: torch.Tensor, head: torch.Tensor) -> dict[str, torch.Tensor]:
    weights = {
        "model.embed_tokens.weight": embeddings,
        "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": head,
    }
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        for projection in (*(f"self_attn.{letter}" for letter in "qkvo"), "mlp.gate", "mlp.up", "mlp.down"):
            weights[f"{name}.{projection}_proj.weight"] = torch.zeros(HIDDEN, HIDDEN)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{name}.{norm}.weight"] = torch.ones(HIDDEN)
    return weights


def _draft_weights(head: torch.Tensor, turn: torch.Tensor) -> dict[str, torch.Tensor]:
    rms = math.sqrt((2 + CIRCLES) / HIDDEN)  # of any embedding
    gate = torch.zeros(HIDDEN, HIDDEN, dtype=torch.float64)
    gate[:, 0] = GATE * rms
    opened = GATE / (1 + math.exp(-GATE))  # SiLU(GATE)
    take_first_tap = torch.cat((torch.eye(HIDDEN), torch.zeros(HIDDEN, 2 * HIDDEN)), dim=1)
    weights = {
        "fc.weight": take_first_tap,
        "norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": _with_mistakes(head),
        "midlayer.mlp.gate_proj.weight": gate,
        "midlayer.mlp.up_proj.weight": turn - torch.eye(HIDDEN),
        "midlayer.mlp.down_proj.weight": torch.eye(HIDDEN) * (rms / opened),
        "midlayer.self_attn.o_proj.weight": torch.zeros(HIDDEN, HIDDEN),
        "d2t": torch.zeros(VOCABULARY, dtype=torch.int64),
        "t2d": torch.ones(VOCABULARY, dtype=torch.bool),
    }
    for projection in "qkv":
        weights[f"midlayer.self_attn.{projection}_proj.weight"] = torch.zeros(HIDDEN, 2 * HIDDEN)
    for norm in ("hidden_norm", "input_layernorm", "post_attention_layernorm"):
        weights[f"midlayer.{norm}.weight"] = torch.ones(HIDDEN)
    return weights


def _with_mistakes(head: torch.Tensor) -> torch.Tensor:
    rows = torch.arange(VOCABULARY)
    for token in range(MISTAKE_EVERY, VOCABULARY - 1, MISTAKE_EVERY):
        rows[token], rows[token + 1] = token + 1, token
    return head[rows]


def _save(folder: Path, weights: dict[str, torch.Tensor], extra: dict[str, object], layers: int) -> None:
    stored = {
        name: (value.to(torch.bfloat16) if value.is_floating_point() else value).contiguous()
        for name, value in weights.items()
    }
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": HIDDEN,
        "num_hidden_layers": layers,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": HIDDEN,
        "vocab_size": VOCABULARY,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": END_OF_TEXT,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
    }
    (folder / "config.json").write_text(json.dumps(config | extra, indent=1))


def _write_tokenizer(folder: Path) -> None:
    special = {"<s>": 0, "<unk>": 1, "</s>": END_OF_TEXT}
    words = {f"w{i}": i for i in range(2, END_OF_TEXT)}
    tokenizer = Tokenizer(models.WordLevel(special | words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(special))
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
