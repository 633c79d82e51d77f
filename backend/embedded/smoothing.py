"""Move the unevenness of activations into the weights, so that 8 bits suit both (SmoothQuant, arXiv 2211.10438).

A channel that is large in every row sets the row's scale and leaves the others few steps of it. Dividing the channel
by a factor where it is made (a norm's weight, the rows of an earlier matrix) and multiplying the next matrix's
column by it leaves the model's function as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from tokenizers import Tokenizer
from torch import Tensor

from backend.embedded.config import TargetConfig
from backend.embedded.linear import Linear
from backend.embedded.target import Target, build_target
from backend.embedded.weights import Matrix, TargetWeights, as_float

ALPHA = 0.5  # share of the unevenness that moves
SMALLEST = 1e-5


class Recorder(Linear):
    """A linear that remembers the largest absolute value that each input channel had."""

    def __init__(self, inner: Linear) -> None:
        self.inner = inner
        self.largest: Tensor | None = None  # [in]

    def __call__(self, x: Tensor) -> Tensor:
        largest = x.float().abs().amax(0)
        self.largest = largest if self.largest is None else torch.maximum(self.largest, largest)
        return self.inner(x)

    def tensors(self) -> dict[str, Tensor]:
        return self.inner.tensors()


def smooth(weights: TargetWeights, tokenizer: Tokenizer, sample: str) -> TargetWeights:
    """The same function with evener activations, as measured on a sample of text. All matrices become float32."""
    ids = tokenizer.encode(sample, add_special_tokens=False).ids
    return balance(weights, measure_channels(build_target(weights, "int8"), ids))


@torch.inference_mode()
def measure_channels(target: Target, ids: Sequence[int]) -> dict[str, Tensor]:
    """Per input of a matrix, each channel's largest absolute value over the text. Values: [in] float32"""
    recorders: dict[str, Recorder] = {}

    def watch(name: str, inner: Linear) -> Recorder:
        recorders[name] = Recorder(inner)
        return recorders[name]

    watched = Target(
        target.config,
        target.dtype,
        [
            replace(
                layer,
                qkv=watch(f"layers.{index}.qkv", layer.qkv),
                output=watch(f"layers.{index}.output", layer.output),
                gate_up=watch(f"layers.{index}.gate_up", layer.gate_up),
                down=watch(f"layers.{index}.down", layer.down),
            )
            for index, layer in enumerate(target.layers)
        ],
        target.embedding,
        target.final_norm,
        watch("head", target.head),
    )
    rows = torch.tensor(ids)
    watched.logits(watched.forward(rows, 0, watched.new_cache(len(ids)), tap=False).last)
    return {name: recorder.largest for name, recorder in recorders.items() if recorder.largest is not None}


def balance(weights: TargetWeights, channels: Mapping[str, Tensor]) -> TargetWeights:
    """Divide every channel where it is made, multiply it where it is read. channels: of `measure_channels`"""
    config = weights.config
    matrices = {name: as_float(matrix) for name, matrix in weights.matrices.items()}
    norms = {name: norm.float() for name, norm in weights.norms.items()}
    for index in range(config.num_layers):
        prefix = f"layers.{index}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        qkv = [attention + name for name in ("q_proj", "k_proj", "v_proj")]
        gate_up = [mlp + name for name in ("gate_proj", "up_proj")]
        _move_to_readers(matrices, qkv, norms, prefix + "input_layernorm", channels[prefix + "qkv"])
        _move_to_readers(matrices, gate_up, norms, prefix + "post_attention_layernorm", channels[prefix + "gate_up"])
        # The product silu(gate) * up is divided where `up` is made; attention's output where the values are.
        factors = choose_factors(channels[prefix + "down"], [matrices[mlp + "down_proj"]])
        matrices[mlp + "down_proj"] = matrices[mlp + "down_proj"] * factors
        matrices[mlp + "up_proj"] = matrices[mlp + "up_proj"] / factors[:, None]
        factors = choose_factors(channels[prefix + "output"], [matrices[attention + "o_proj"]])
        shared = _share_among_heads(factors, config)  # [kv_heads, 1, dim]
        matrices[attention + "v_proj"] = matrices[attention + "v_proj"] / shared.reshape(-1, 1)
        spread = shared.expand(-1, config.num_heads // config.num_kv_heads, -1).reshape(-1)
        matrices[attention + "o_proj"] = matrices[attention + "o_proj"] * spread
    head = (weights.embedding if weights.head is None else weights.head).float()
    factors = choose_factors(channels["head"], [head])
    norms["norm"] = norms["norm"] / factors
    return TargetWeights(config, dict[str, Matrix](matrices), norms, weights.embedding, head * factors)


def choose_factors(largest: Tensor, readers: Sequence[Tensor]) -> Tensor:
    """What to divide each channel by: activation ** ALPHA / weight ** (1 - ALPHA), each by its largest. [in]

    largest: [in]; readers: the matrices that read the channels, [out, in] each.
    """
    weight = torch.stack([reader.abs().amax(0) for reader in readers]).amax(0)
    return (largest.clamp_min(SMALLEST) ** ALPHA / weight.clamp_min(SMALLEST) ** (1 - ALPHA)).clamp_min(SMALLEST)


def _move_to_readers(
    matrices: dict[str, Tensor], names: Sequence[str], norms: dict[str, Tensor], norm: str, largest: Tensor
) -> None:
    factors = choose_factors(largest, [matrices[name] for name in names])
    norms[norm] = norms[norm] / factors
    for name in names:
        matrices[name] = matrices[name] * factors


def _share_among_heads(factors: Tensor, config: TargetConfig) -> Tensor:
    """Query heads of a group read the same values, so they share the largest factor. [heads * dim] -> [kv, 1, dim]"""
    return factors.view(config.num_kv_heads, -1, config.head_dim).amax(1, keepdim=True)
