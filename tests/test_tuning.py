"""The engine's choices follow from what it measured."""

from __future__ import annotations

import pytest
import torch

from backend.embedded import tuning
from backend.embedded.draft import Draft
from backend.embedded.linear import Dtype
from backend.embedded.target import Target, build_target
from backend.embedded.tuning import choose_dtype, choose_num_steps, expected_tokens, has_kernel, prefer, runnable_dtypes
from tests.tiny_pair import tiny_checkpoint, tiny_config, tiny_weights


@pytest.fixture
def pair() -> tuple[Target, Draft]:
    config = tiny_config()
    return build_target(tiny_weights(config), "int4"), Draft(tiny_checkpoint(config), "int4", config.context_length)


def test_only_a_clearly_faster_dtype_displaces_the_preferred_one() -> None:
    assert prefer({"w8a8": 1.0, "int4": 0.9, "int8": 2.0}) == "w8a8"
    assert prefer({"w8a8": 1.0, "int4": 0.8, "int8": 0.5}) == "int8"


def test_a_dtype_is_chosen_among_those_that_run_here() -> None:
    threads = torch.get_num_threads()
    assert choose_dtype(tiny_config(), 3) in runnable_dtypes(tiny_config())
    assert torch.get_num_threads() == threads


def test_a_missing_kernel_is_no_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_matrix: object, _dtype: Dtype) -> None:
        raise NotImplementedError("no kernel for this CPU")

    monkeypatch.setattr(tuning, "pack", refuse)
    assert not has_kernel("int4")


def test_an_average_step_gives_the_targets_token_and_the_accepted_drafts() -> None:
    assert expected_tokens((0.5, 0.25, 0.1), 2) == 1.75


@pytest.mark.parametrize(
    ("row_cost", "shares", "best"),
    [
        (0.0, (0.9, 0.8, 0.7, 0.6, 0.5), 5),  # verifying is free: draft as far as tuning looks
        (1.0, (0.9, 0.5, 0.1, 0.05), 1),  # every row costs a forward: one draft at most
        (0.1, (0.6, 0.35, 0.2, 0.02), 3),  # the fourth draft brings less than it costs
    ],
)
def test_drafts_a_step_follow_the_costs_and_the_drafts_acceptance(
    pair: tuple[Target, Draft], monkeypatch: pytest.MonkeyPatch, row_cost: float, shares: tuple[float, ...], best: int
) -> None:
    monkeypatch.setattr(tuning, "verify_seconds", lambda _target, rows: 1.0 + row_cost * (rows - 1))
    monkeypatch.setattr(tuning, "draft_step_seconds", lambda *_pair: 0.01)
    assert choose_num_steps(*pair, shares) == best


def test_a_draft_that_does_not_tell_its_acceptance_is_tuned_for_a_typical_one(pair: tuple[Target, Draft]) -> None:
    assert 1 <= choose_num_steps(*pair) <= len(tuning.TYPICAL_ACCEPTANCE)
