"""A run as its steps: nothing lost, nothing claimed that the engine did not tell."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from backend.events import Chunk, Source
from backend.playback import list_steps, ran_at_once
from tests.recordings import make_drafted_run, make_plain_run, name_pieces

ACCEPTED = st.lists(st.integers(0, 3), min_size=1, max_size=12)


@given(ACCEPTED)
def test_the_steps_hold_every_token_once_and_accept_what_the_engine_accepted(accepted: list[int]) -> None:
    run = make_drafted_run(name_pieces(1 + sum(accepted) + len(accepted)), accepted)
    steps = list_steps(run)
    assert tuple(token for step in steps for token in step.tokens) == run.tokens
    assert [step.number for step in steps] == list(range(len(accepted) + 1))
    assert [step.accepted for step in steps[1:]] == accepted
    assert all(step.own is step.tokens[-1] for step in steps)
    assert [step.arrived for step in steps] == [chunk.arrived for chunk in run.chunks]


def test_what_was_proposed_for_two_steps_in_one_chunk_is_claimed_for_neither() -> None:
    run = make_drafted_run(name_pieces(4), [0, 1])
    merged = Chunk(run.chunks[2].arrived, (1, 2, 3), " w1 w2 w3", (900, 901, 902))
    steps = list_steps(replace(run, chunks=(run.chunks[0], merged)))
    assert [(step.number, step.proposed) for step in steps] == [(0, ()), (1, None), (2, None)]


def test_a_step_that_the_stop_cut_has_no_token_of_the_target() -> None:
    run = make_drafted_run(name_pieces(4), [2])
    kept = run.tokens[:-1]
    step = list_steps(replace(run, tokens=kept))[-1]
    assert step.own is None
    assert [token.source for token in step.tokens] == [Source.DRAFT, Source.DRAFT]


def test_runs_that_overlap_in_time_ran_at_once() -> None:
    drafted, plain = make_drafted_run(name_pieces(4), [2]), make_plain_run(name_pieces(4))
    assert not ran_at_once([drafted, plain])
    assert not ran_at_once([plain, drafted])
    assert ran_at_once([drafted, replace(plain, started_at=drafted.started_at + 0.05)])
    assert not ran_at_once([drafted])
