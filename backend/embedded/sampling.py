"""How the target's logits become tokens: plain draws, and the verification of a drafted chain."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Verdict:
    """ids: the accepted drafts, then the target's own token (bonus or correction). accepted: how many drafts."""

    ids: tuple[int, ...]
    accepted: int


def target_distribution(logits: Tensor, temperature: float, top_p: float) -> Tensor:
    """The target's distribution after temperature and nucleus cut. [rows, vocab] -> [rows, vocab] float32

    top_p keeps the smallest set of most likely tokens whose probabilities reach top_p, and at least one.
    """
    probabilities = (logits.float() / temperature).softmax(-1)
    if top_p >= 1.0:
        return probabilities
    ordered, order = probabilities.sort(-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    ordered = ordered.masked_fill(before >= top_p, 0.0)
    kept = torch.zeros_like(probabilities).scatter_(-1, order, ordered)
    return kept / kept.sum(-1, keepdim=True)


def verify_greedy(logits: Tensor, drafts: list[int]) -> Verdict:
    """Accept drafts while they are the target's argmax. logits: [len(drafts) + 1, vocab]"""
    choices = logits.argmax(-1).tolist()
    accepted = 0
    while accepted < len(drafts) and drafts[accepted] == choices[accepted]:
        accepted += 1
    return Verdict((*drafts[:accepted], choices[accepted]), accepted)


def verify_sampled(distribution: Tensor, drafts: list[int], rng: torch.Generator) -> Verdict:
    """Speculative sampling where the draft is a point mass. distribution: [len(drafts) + 1, vocab]

    A draft d is accepted with probability p(d); on refusal the token is drawn from p without d. So
    every token is distributed as the target alone would draw it (Leviathan et al. 2023, theorem 1, q = 1 at d).
    """
    coins = torch.rand(len(drafts), generator=rng).tolist()
    for place, (draft, coin) in enumerate(zip(drafts, coins, strict=True)):
        p = distribution[place]
        if coin < p[draft].item():
            continue
        others = p.clone()
        others[draft] = 0.0
        return Verdict((*drafts[:place], _draw(others, rng)), place)
    return Verdict((*drafts, _draw(distribution[len(drafts)], rng)), len(drafts))


def _draw(weights: Tensor, rng: torch.Generator) -> int:
    return int(torch.multinomial(weights, 1, generator=rng))
