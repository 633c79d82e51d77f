"""Other decoders of the same weights on the same threads: what the baseline lane is measured against.

Both are optional packages: `pip install "eaglelens[bench]"`.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from backend.embedded.weights import TargetWeights, as_float, split_rotary


class Peer(ABC):
    """Another program that decodes greedily, without speculation."""

    name: str

    @abstractmethod
    def speed(self, prompt: Sequence[int], max_tokens: int) -> float | None:
        """Decode speed in tokens per second after the first token; None where fewer than two tokens came."""


class LlamaCpp(Peer):
    """llama.cpp on the GGUF file itself, by its own clock (`predicted_ms`), through the xllamacpp package."""

    name = "llama.cpp"

    def __init__(self, gguf: Path, threads: int, context_length: int) -> None:
        import xllamacpp  # noqa: PLC0415  optional

        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(gguf)
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
        parameters.n_ctx = context_length
        parameters.n_parallel = 1
        self._server = xllamacpp.Server(parameters)

    def speed(self, prompt: Sequence[int], max_tokens: int) -> float | None:
        request = {"prompt": list(prompt), "max_tokens": max_tokens, "temperature": 0.0, "cache_prompt": False}
        reply = self._server.handle_completions(request)
        timings = (json.loads(reply) if isinstance(reply, str) else reply)["timings"]
        tokens = int(timings["predicted_n"])
        # The first token comes out of the prompt's own forward, so `predicted_ms` spans one forward less.
        return 1e3 * (tokens - 1) / float(timings["predicted_ms"]) if tokens > 1 else None


class Transformers(Peer):
    """`generate` of the transformers library, with the weights dequantised to float32 or bfloat16."""

    def __init__(self, weights: TargetWeights, eos_id: int, dtype: torch.dtype = torch.float32) -> None:
        import transformers  # noqa: PLC0415  optional

        config = weights.config
        self.name = f"transformers {str(dtype).removeprefix('torch.')}"
        self._eos_id = eos_id
        model: Any = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                hidden_size=config.hidden_size,
                intermediate_size=config.intermediate_size,
                num_hidden_layers=config.num_layers,
                num_attention_heads=config.num_heads,
                num_key_value_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                vocab_size=config.vocab_size,
                rms_norm_eps=config.rms_norm_eps,
                rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
                max_position_embeddings=config.context_length,
                tie_word_embeddings=weights.head is None,
            )
        )
        self._model = model.to(dtype)
        self._model.load_state_dict(huggingface_tensors(weights), strict=False)
        self._model.eval()

    def speed(self, prompt: Sequence[int], max_tokens: int) -> float | None:
        arrivals: list[float] = []

        def note_arrival(_ids: torch.Tensor, _scores: object, **_unused: object) -> bool:
            arrivals.append(time.perf_counter())
            return False

        ids = torch.tensor([list(prompt)])
        self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=self._eos_id,
            pad_token_id=self._eos_id,
            stopping_criteria=[note_arrival],
        )
        return (len(arrivals) - 1) / (arrivals[-1] - arrivals[0]) if len(arrivals) > 1 else None


def huggingface_tensors(weights: TargetWeights) -> dict[str, torch.Tensor]:
    """Every tensor in float under its Hugging Face name, rotary halves apart."""
    config = weights.config
    tensors = {"model.embed_tokens.weight": weights.embedding}
    tensors["lm_head.weight"] = weights.embedding if weights.head is None else weights.head
    for name, matrix in weights.matrices.items():
        dense = as_float(matrix)
        if name.endswith("q_proj"):
            dense = split_rotary(dense, config.num_heads)
        elif name.endswith("k_proj"):
            dense = split_rotary(dense, config.num_kv_heads)
        tensors[f"model.{name}.weight"] = dense.contiguous()
    return tensors | {f"model.{name}.weight": norm for name, norm in weights.norms.items()}
