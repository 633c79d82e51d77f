"""Every number against its definition, and a dash where there is none."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from backend import metrics
from backend.events import Counters, Source, Token

F, D, T, U = Source.FIRST, Source.DRAFT, Source.TARGET, Source.UNCERTAIN


def arrive(chunks: list[tuple[float, int]]) -> tuple[Token, ...]:
    """Tokens of chunks given as (seconds after the one before, tokens)."""
    tokens: list[Token] = []
    now = 0.0
    for gap, size in chunks:
        now += gap
        tokens += [Token(len(tokens) + at, 1, "x", T, None, None, now) for at in range(size)]
    return tuple(tokens)


STREAMS = st.lists(st.tuples(st.floats(0.001, 3.0), st.integers(1, 6)), max_size=30).map(arrive)
COUNTERS = st.builds(Counters, st.integers(1, 500), st.integers(0, 1500), st.none(), st.integers(1, 2000))


@given(STREAMS, st.floats(0.05, 2.0))
def test_the_area_under_the_speed_curve_is_the_tokens_after_the_first(tokens: tuple[Token, ...], window: float) -> None:
    seconds, speeds = metrics.speed_over_time(tokens, window)
    if metrics.decode_speed(tokens) is None:
        assert (seconds, speeds) == ((), ())
        return
    area = sum((end - begin) * speed for (begin, end), speed in zip(pairwise(seconds), speeds[1:], strict=True))
    assert area == pytest.approx(len(tokens) - 1)
    assert (seconds[0], seconds[-1]) == (tokens[0].arrived, tokens[-1].arrived)
    assert min(speeds) >= 0


@given(STREAMS)
def test_the_mean_of_the_speed_curve_is_the_decode_speed(tokens: tuple[Token, ...]) -> None:
    speed = metrics.decode_speed(tokens)
    assume(speed is not None)
    seconds, speeds = metrics.speed_over_time(tokens, 1e9)
    assert len(seconds) == 2
    assert speeds[1] == pytest.approx(speed)


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_tokens_are_counted_not_chunks(size: int) -> None:
    tokens = arrive([(0.5, 1)] + [(size / 20, size)] * (160 // size))
    assert metrics.decode_speed(tokens) == pytest.approx(20.0)
    _, speeds = metrics.speed_over_time(tokens)
    assert speeds == pytest.approx([20.0] * len(speeds))


@given(STREAMS)
def test_the_time_to_the_first_token_is_no_part_of_the_decode_speed(tokens: tuple[Token, ...]) -> None:
    later = tuple(Token(t.index, t.id, t.piece, t.source, t.step, t.place, t.arrived + 50) for t in tokens)
    speed = metrics.decode_speed(tokens)
    assert metrics.decode_speed(later) == (None if speed is None else pytest.approx(speed))
    assert metrics.ttft(tokens) == (tokens[0].arrived if tokens else None)


@pytest.mark.parametrize("chunks", [[], [(0.2, 1)], [(0.2, 4)]])
def test_one_token_or_one_chunk_has_no_speed(chunks: list[tuple[float, int]]) -> None:
    tokens = arrive(chunks)
    assert metrics.decode_speed(tokens) is None
    assert metrics.speed_over_time(tokens) == ((), ())
    assert metrics.saved_seconds(tokens, 10.0) is None


@given(STREAMS)
def test_the_cumulative_curve_ends_with_all_tokens_and_never_falls(tokens: tuple[Token, ...]) -> None:
    seconds, totals = metrics.cumulative_tokens(tokens)
    assert (totals[-1] if totals else 0) == len(tokens)
    assert list(seconds) == sorted(set(seconds))
    assert list(totals) == sorted(totals)


@given(COUNTERS, st.integers(1, 8))
def test_acceptance_counts_the_engines_own_totals(counters: Counters, num_steps: int) -> None:
    assert counters.verify_steps is not None and counters.accepted is not None
    length = metrics.acceptance_length(counters)
    rate = metrics.acceptance_rate(counters, num_steps)
    assert length is not None and rate is not None
    assert length >= 1
    assert length == pytest.approx(1 + rate * num_steps)


def test_acceptance_of_the_chain_pair() -> None:
    counters = Counters(8, 12, 24, 20, histogram=(4, 0, 0, 4))
    assert metrics.acceptance_length(counters) == 2.5
    assert metrics.acceptance_rate(counters, 3) == 0.5
    assert metrics.sglang_accept_length(counters) == 2.5
    assert metrics.acceptance_by_place(counters.histogram) == (0.5, 0.5, 0.5)


@pytest.mark.parametrize("counters", [None, Counters(None, None, None, 5), Counters(0, 0, 0, 1)])
def test_without_a_verify_step_there_is_no_acceptance(counters: Counters | None) -> None:
    assert metrics.acceptance_length(counters) is None
    assert metrics.acceptance_rate(counters, 3) is None
    assert metrics.sglang_accept_length(counters) is None
    assert metrics.acceptance_by_place(()) is None
    assert metrics.acceptance_by_place((0, 0)) is None


@pytest.mark.parametrize(
    ("speed", "baseline", "found"), [(50.0, 25.0, 2.0), (20.0, 25.0, 0.8), (None, 25.0, None), (50.0, None, None)]
)
def test_a_speedup_needs_both_speeds(speed: float | None, baseline: float | None, found: float | None) -> None:
    assert metrics.speedup(speed, baseline) == found


def test_saved_seconds_are_those_the_baseline_would_have_needed_more() -> None:
    tokens = arrive([(0.5, 1)] + [(0.1, 2)] * 20)
    assert metrics.saved_seconds(tokens, 10.0) == pytest.approx(4.0 - 2.0)
    assert metrics.saved_seconds(tokens, 40.0) == pytest.approx(1.0 - 2.0)
    assert metrics.saved_seconds(tokens, None) is None


def label(sources: list[tuple[Source, int | None]]) -> tuple[Token, ...]:
    return tuple(Token(at, 1, "x", source, step, None, 0.0) for at, (source, step) in enumerate(sources))


def test_accepted_drafts_are_told_step_by_step() -> None:
    tokens = label([(F, 0), (T, 1), (D, 2), (D, 2), (T, 2), (D, 3)])
    accepted = metrics.accepted_per_step(tokens)
    assert accepted == (0, 2, 1)
    assert metrics.count_histogram(accepted, 3) == (1, 1, 1, 0)


def test_hidden_steps_are_not_guessed() -> None:
    assert metrics.accepted_per_step(label([(F, 0), (U, None), (T, None)])) is None
    assert metrics.accepted_per_step(label([(F, 0)])) is None
    assert metrics.accepted_per_step(()) is None


@given(st.lists(st.integers(0, 3), max_size=8), st.lists(st.integers(0, 3), max_size=8))
def test_the_first_difference_is_where_the_shared_start_ends(one: list[int], other: list[int]) -> None:
    at = metrics.first_difference(one, other)
    if at is None:
        assert one == other
    else:
        assert one[:at] == other[:at]
        assert one[at : at + 1] != other[at : at + 1]


def test_repeats_are_summarised_without_those_that_have_no_number() -> None:
    assert metrics.summarise([3.0, None, 1.0, 2.0]) == metrics.Spread(2.0, 1.0, 3.0, 3)
    assert metrics.summarise([None]) is None
