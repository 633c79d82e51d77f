"""Smoothing evens out activations without changing what the model computes."""

from __future__ import annotations

import torch
from torch import Tensor

from backend.embedded.smoothing import balance, choose_factors, measure_channels
from backend.embedded.target import Target, build_target
from backend.embedded.weights import TargetWeights
from tests.tiny_pair import tiny_config, tiny_weights

IDS = [3, 14, 15, 9, 26, 5, 35, 8]


def logits(target: Target) -> Tensor:
    with torch.inference_mode():
        hidden = target.forward(torch.tensor(IDS), 0, target.new_cache(len(IDS))).last
        return target.logits(hidden).float()


def uneven_weights() -> TargetWeights:
    """A target in which one channel behind each norm is a hundred times the others, and weighs a hundredth."""
    weights = tiny_weights(tiny_config())
    for norm in weights.norms.values():
        norm[5] = 100.0
    readers = [matrix for name, matrix in weights.matrices.items() if not name.endswith(("o_proj", "down_proj"))]
    for reader in [*readers, weights.head]:
        assert isinstance(reader, Tensor)
        reader[:, 5] /= 100
    return weights


def error(got: Tensor, expected: Tensor) -> float:
    return float(((got - expected).square().mean() / expected.square().mean()).sqrt())


def test_a_smoothed_target_computes_what_it_did_before() -> None:
    weights = uneven_weights()
    plain = build_target(weights, "fp32")
    smoothed = build_target(balance(weights, measure_channels(plain, IDS)), "fp32")
    assert error(logits(smoothed), logits(plain)) < 1e-4


def test_8_bit_activations_lose_less_after_smoothing() -> None:
    weights = uneven_weights()
    plain = build_target(weights, "fp32")
    expected = logits(plain)
    rough = error(logits(build_target(weights, "w8a8")), expected)
    smooth = error(logits(build_target(balance(weights, measure_channels(plain, IDS)), "w8a8")), expected)
    assert smooth < rough / 1.5


def test_factors_share_the_unevenness_between_activation_and_weight() -> None:
    weight = torch.tensor([[1.0, 4.0], [-2.0, 1.0]])
    factors = choose_factors(torch.tensor([50.0, 1.0]), [weight])
    assert torch.allclose(factors, torch.tensor([5.0, 0.5]))


def test_every_input_of_a_matrix_is_measured() -> None:
    target = build_target(tiny_weights(tiny_config()), "fp32")
    channels = measure_channels(target, IDS)
    assert len(channels) == 4 * target.config.num_layers + 1
    assert len(channels["layers.0.down"]) == target.config.intermediate_size
    assert all(torch.all(largest >= 0) and largest.max() > 0 for largest in channels.values())
