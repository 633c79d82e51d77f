"""What a model needs of a GPU, read from its config and the size of its weights. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BYTES_OF = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class ModelNeeds:
    """Memory in bytes. `kv_bytes_per_head` is one token's keys and values of one head over all layers.

    With latent attention (DeepSeek, Kimi) a token has one compressed vector that every GPU keeps whole:
    `kv_heads` is then 1. Layers that keep no keys and values count as if they did: an upper bound.
    """

    weight_bytes: int
    attention_heads: int
    kv_heads: int
    kv_bytes_per_head: int

    def kv_bytes_per_token(self, tp: int) -> int:
        """Of one token, on each of `tp` GPUs; heads are shared out, and repeated where there are fewer than GPUs."""
        return -(-self.kv_heads // tp) * self.kv_bytes_per_head


def read_needs(config: Mapping[str, Any], weight_bytes: int) -> ModelNeeds:
    """The needs of the model with this `config.json`. Raises ValueError where it lacks what they follow from."""
    text = config.get("text_config", config)
    size = BYTES_OF.get(str(text.get("dtype") or text.get("torch_dtype") or config.get("torch_dtype")), 2)
    try:
        layers, heads = int(text["num_hidden_layers"]), int(text["num_attention_heads"])
        if text.get("kv_lora_rank"):
            width = int(text["kv_lora_rank"]) + int(text["qk_rope_head_dim"])
            return ModelNeeds(weight_bytes, heads, 1, layers * width * size)
        head = int(text.get("head_dim") or text["hidden_size"] // heads)
        return ModelNeeds(weight_bytes, heads, int(text.get("num_key_value_heads") or heads), 2 * layers * head * size)
    except KeyError as error:
        raise ValueError(f"The model's config.json has no {error}, so its memory cannot be told.") from error
