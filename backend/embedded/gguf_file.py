"""Read a Llama target out of a GGUF file: config, weights in their own quantisation, tokenizer, chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from backend.embedded.config import TargetConfig, choose_taps
from backend.embedded.weights import GROUP, Matrix, Q4Matrix, TargetWeights

CONTROL_TOKEN = 3  # gguf.TokenType.CONTROL
USER_TOKEN = 4  # gguf.TokenType.USER_DEFINED

LAYER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


class GgufFile:
    """One opened GGUF file of the Llama architecture."""

    def __init__(self, path: Path) -> None:
        self._reader = gguf.GGUFReader(str(path))
        architecture = self._field("general.architecture")
        if architecture != "llama":
            raise ValueError(f"{path} holds a '{architecture}' model; the embedded engine reads 'llama' from GGUF.")

    def _field(self, name: str) -> Any:
        field = self._reader.get_field(name)
        if field is None:
            raise ValueError(f"The GGUF file lacks the field '{name}'; is it complete?")
        return field.contents()

    @property
    def chat_template(self) -> str:
        return str(self._field("tokenizer.chat_template"))

    @property
    def eos_id(self) -> int:
        return int(self._field("tokenizer.ggml.eos_token_id"))

    @property
    def special_tokens(self) -> dict[str, str]:
        """The strings that a chat template may name."""
        tokens = self._field("tokenizer.ggml.tokens")
        return {
            f"{name}_token": str(tokens[int(self._field(f"tokenizer.ggml.{field}_token_id"))])
            for name, field in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
        }

    def read_config(self) -> TargetConfig:
        heads = int(self._field("llama.attention.head_count"))
        hidden = int(self._field("llama.embedding_length"))
        layers = int(self._field("llama.block_count"))
        return TargetConfig(
            num_layers=layers,
            hidden_size=hidden,
            num_heads=heads,
            num_kv_heads=int(self._field("llama.attention.head_count_kv")),
            head_dim=int(self._field("llama.rope.dimension_count")),
            intermediate_size=int(self._field("llama.feed_forward_length")),
            vocab_size=int(self._field("llama.vocab_size")),
            rms_norm_eps=round(float(self._field("llama.attention.layer_norm_rms_epsilon")), 10),
            rope_theta=float(self._field("llama.rope.freq_base")),
            context_length=int(self._field("llama.context_length")),
            taps=choose_taps(layers),
        )

    def read_weights(self) -> TargetWeights:
        """Q4_1 matrices stay as they are; everything else becomes float32.

        llama.cpp stores query and key rows with their rotary pairs side by side, as the engine wants them.
        """
        matrices: dict[str, Matrix] = {}
        norms: dict[str, Tensor] = {}
        plain: dict[str, Tensor] = {}
        for tensor in self._reader.tensors:
            name = _rename(tensor.name)
            if tensor.tensor_type == gguf.GGMLQuantizationType.Q4_1:
                matrices[name] = _unpack_q4_1(tensor.data)
                continue
            dense = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
            if name in ("embed_tokens", "lm_head"):
                plain[name] = dense
            elif dense.dim() == 1:
                norms[name] = dense
            else:
                matrices[name] = dense
        return TargetWeights(self.read_config(), matrices, norms, plain["embed_tokens"], plain.get("lm_head"))

    def read_tokenizer(self) -> Tokenizer:
        """The byte-level BPE tokenizer stored in the file, with SmolLM's digit splitting."""
        if self._field("tokenizer.ggml.pre") != "smollm":
            raise ValueError("Only SmolLM's pre-tokenizer is read from GGUF; use a Hugging Face folder instead.")
        tokens = [str(token) for token in self._field("tokenizer.ggml.tokens")]
        merges = [_split_merge(str(merge)) for merge in self._field("tokenizer.ggml.merges")]
        kinds = list(self._field("tokenizer.ggml.token_type"))
        vocab = {token: index for index, token in enumerate(tokens)}
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
        tokenizer.decoder = decoders.ByteLevel()
        special = [token for token, kind in zip(tokens, kinds, strict=True) if kind in (CONTROL_TOKEN, USER_TOKEN)]
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
        return tokenizer


def _split_merge(merge: str) -> tuple[str, str]:
    left, right = merge.split(" ", 1)
    return left, right


def _rename(name: str) -> str:
    """`blk.3.attn_q.weight` -> `layers.3.self_attn.q_proj`."""
    parts = name.removesuffix(".weight").split(".")
    if parts[0] == "blk":
        return f"layers.{parts[1]}.{LAYER_NAMES[parts[2]]}"
    return {"token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head"}[parts[0]]


def _unpack_q4_1(data: np.ndarray) -> Q4Matrix:
    """A Q4_1 block is a float16 scale, a float16 minimum and 16 bytes: low nibbles first, then high ones (ggml)."""
    rows = data.shape[0]
    blocks = data.reshape(rows, -1, 4 + GROUP // 2)
    halves = blocks[..., :4].copy().view(np.float16).astype(np.float32)  # [rows, blocks, 2]
    packed = blocks[..., 4:]
    codes = np.concatenate([packed & 0x0F, packed >> 4], axis=-1).reshape(rows, -1)
    return Q4Matrix(torch.from_numpy(codes), torch.from_numpy(halves[..., 0]), torch.from_numpy(halves[..., 1]))
