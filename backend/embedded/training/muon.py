"""Muon (Jordan et al., 2024): momentum whose update is orthogonalised, for the matrices of the head.

In float32: torch.optim.Muon orthogonalises in bfloat16, which CPUs without bf16 units emulate many times slower.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def orthogonalise(update: Tensor, iterations: int = 5) -> Tensor:
    """Push all singular values of a matrix towards 1 by the quintic Newton-Schulz iteration."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = update.T if update.shape[0] > update.shape[1] else update
    x = x / (x.norm() + 1e-7)
    for _ in range(iterations):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    orthogonal: Tensor = x.T if update.shape[0] > update.shape[1] else x
    return orthogonal


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised, scaled so that its rms does not depend on the matrix's shape."""

    def __init__(self, matrices: Iterable[Tensor], lr: float, momentum: float = 0.95) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(matrix)
                momentum = state["momentum"].lerp_(matrix.grad, 1 - group["momentum"])
                update = orthogonalise(matrix.grad.lerp(momentum, group["momentum"]))
                scale = max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
                matrix.add_(update, alpha=-group["lr"] * scale)
