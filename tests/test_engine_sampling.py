"""With a draft, sampled tokens follow the target's own distribution: tested against exact probabilities."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.embedded.engine import Engine
from backend.embedded.sampling import target_distribution, verify_greedy, verify_sampled
from tests.tiny_pair import tiny_engine

VOCAB = 32
PROMPT = [3, 4, 5]
SAMPLES = 1500
CRITICAL = 1e-4  # a fair engine fails one run in ten thousand; the seed is fixed


def exact_pair_probabilities(engine: Engine, temperature: float, top_p: float) -> torch.Tensor:
    """P(first, second) after the prompt, by running the target over every first token. [vocab, vocab]"""
    with torch.inference_mode():
        rows = []
        for first in range(VOCAB):
            ids = torch.tensor([*PROMPT, first])
            hidden = engine.target.forward(ids, 0, engine.target.new_cache(len(ids)))
            logits = engine.target.logits(hidden.last[-2:])
            rows.append(target_distribution(logits, temperature, top_p))
    stacked = torch.stack(rows)  # [first, 2, vocab]
    return stacked[0, 0][:, None] * stacked[:, 1]


def chi_square_p_value(observed: torch.Tensor, expected: torch.Tensor) -> float:
    """Cells expected fewer than five times are pooled. Survival of chi-square by the regularised gamma function."""
    rare = expected < 5
    if rare.any():
        observed = torch.cat([observed[~rare], observed[rare].sum()[None]])
        expected = torch.cat([expected[~rare], expected[rare].sum()[None].clamp_min(1e-9)])
    statistic = ((observed - expected) ** 2 / expected).sum()
    freedom = torch.tensor((len(expected) - 1) / 2.0, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic.double() / 2))


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (1.4, 0.95)])
def test_drafted_samples_follow_the_exact_distribution_of_the_target(temperature: float, top_p: float) -> None:
    engine = tiny_engine("fp32", vocab=VOCAB, context=64, head_scale=0.25)
    exact = exact_pair_probabilities(engine, temperature, top_p)
    counts = torch.zeros(VOCAB, VOCAB)
    accepted = 0
    for seed in range(SAMPLES):
        generation = engine.start(PROMPT, temperature=temperature, top_p=top_p, seed=seed, num_steps=2)
        first = generation.step().ids[0]
        step = generation.step()
        counts[first, step.ids[0]] += 1
        accepted += step.accepted
        generation.close()
    assert accepted > 0  # both the accepting and the correcting branch were taken
    assert accepted < 2 * SAMPLES
    assert chi_square_p_value(counts.flatten(), exact.flatten() * SAMPLES) > CRITICAL
    assert counts[exact < 1e-9].sum() == 0


def test_the_same_seed_gives_the_same_reply() -> None:
    engine = tiny_engine("int4")

    def sample(seed: int) -> list[int]:
        generation = engine.start(PROMPT, temperature=1.0, seed=seed, num_steps=3)
        return list(itertools.chain.from_iterable(generation.step().ids for _ in range(15)))

    assert sample(7) == sample(7)
    assert sample(7) != sample(8)


@given(st.integers(0, 10_000), st.floats(0.05, 1.0), st.floats(0.2, 2.0))
@settings(max_examples=60, deadline=None)
def test_top_p_keeps_the_smallest_likely_set(seed: int, top_p: float, temperature: float) -> None:
    logits = torch.randn(1, 20, generator=torch.Generator().manual_seed(seed))
    full = (logits / temperature).softmax(-1)[0]
    kept = target_distribution(logits, temperature, top_p)[0]
    assert kept.sum().item() == pytest.approx(1.0, abs=1e-5)
    inside = full[kept > 0]
    assert inside.sum() >= min(top_p, 1.0) - 1e-5
    assert inside.sum() - inside.min() < top_p + 1e-5


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(0, 1000))
@settings(max_examples=100, deadline=None)
def test_greedy_verification_keeps_the_longest_right_beginning(drafts: list[int], seed: int) -> None:
    logits = torch.randn(len(drafts) + 1, 10, generator=torch.Generator().manual_seed(seed))
    verdict = verify_greedy(logits, drafts)
    choices = logits.argmax(-1).tolist()
    assert verdict.ids == tuple(choices[: verdict.accepted + 1])
    assert verdict.accepted == len(drafts) or drafts[verdict.accepted] != choices[verdict.accepted]


def test_a_draft_of_probability_one_is_always_accepted_and_of_zero_never() -> None:
    certain = torch.tensor([[0.0, 1.0], [0.5, 0.5]])
    rng = torch.Generator().manual_seed(0)
    for _ in range(50):
        assert verify_sampled(certain, [1], rng).accepted == 1
        assert verify_sampled(certain, [0], rng).ids == (1,)
