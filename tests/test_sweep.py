"""A sweep's plan, its points, and the number of drafts that it names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.events import Counters, Exactness, Request, Run, Sampling, Source, Token
from backend.metrics import Spread
from backend.sweep import SweepPoint, find_best, find_rivals, plan_sweep, replies_differ, summarise_points
from ui.sweep_charts import LivePoint, state_finding, sweep_length_chart, sweep_speed_chart


def make_run(speed: float, accepted: int = 0, steps: int = 10, first_id: int = 0, finish: str | None = "length") -> Run:
    """Eleven tokens at `speed` tokens per second."""
    tokens = tuple(Token(i, first_id + i, "x", Source.TARGET, i, 0, 1 + i / speed) for i in range(11))
    counters = Counters(steps, accepted, None, 11)
    request = Request("r", (1,), Sampling())
    return Run("EAGLE-3", request, 0.0, (), tokens, counters, Exactness.EXACT, 3, finish)


def point(num_steps: int, speed: float) -> SweepPoint:
    return SweepPoint(num_steps, Spread(speed, speed, speed, 1), 1.0 + num_steps / 10)


@given(st.integers(1, 8), st.integers(1, 5))
def test_every_number_of_drafts_is_run_equally_often_and_every_other_pass_runs_back(most: int, repeats: int) -> None:
    plan = plan_sweep(most, repeats)
    assert all(plan.count(steps) == repeats for steps in range(most + 1))
    assert len(plan) == repeats * (most + 1)
    first, rest = plan[: most + 1], plan[most + 1 :]
    assert list(first) == sorted(first)
    if rest:
        assert rest[: most + 1] == first[::-1]


def test_a_point_is_the_median_speed_and_the_acceptance_length_over_all_steps() -> None:
    points = summarise_points({2: [make_run(10, 4), make_run(30, 6), make_run(20, 20)], 0: [make_run(12)]})
    assert [one.num_steps for one in points] == [0, 2]
    assert points[1].speed.median == pytest.approx(20)
    assert points[1].acceptance_length == pytest.approx((30 + 30) / 30)
    assert points[0].acceptance_length == 1.0


def test_a_stopped_run_makes_no_point() -> None:
    assert summarise_points({1: [make_run(10, finish="abort")], 2: [make_run(10, finish=None)]}) == ()


def test_the_best_is_the_fastest_and_its_speedup_is_over_the_run_without_a_draft() -> None:
    finding = find_best([point(0, 20), point(1, 22), point(2, 24.2), point(3, 19)])
    assert finding is not None
    assert state_finding(finding) == "2 drafts a step are fastest here: 1.21×"  # noqa: RUF001


def test_where_the_draft_does_not_pay_the_title_says_so() -> None:
    finding = find_best([point(0, 20), point(1, 19)])
    assert finding is not None and finding.speedup == 1
    assert state_finding(finding) == "No draft is fastest here: 20.0 tokens/s"


def test_one_draft_is_singular() -> None:
    finding = find_best([point(0, 10), point(1, 15)])
    assert finding is not None
    assert state_finding(finding) == "1 draft a step is fastest here: 1.50×"  # noqa: RUF001


def test_without_the_run_without_a_draft_nothing_is_found() -> None:
    assert find_best([point(1, 20), point(2, 30)]) is None
    assert find_best([point(0, 20)]) is None


def test_points_whose_runs_overlap_with_the_best_are_too_close_to_call() -> None:
    wide = SweepPoint(2, Spread(24, 21, 27, 3), 1.5)
    assert find_rivals([SweepPoint(1, Spread(20, 19, 22, 3), 1.2), wide, point(0, 20)]) == (1,)
    assert find_rivals([point(0, 20), point(1, 22)]) == ()
    assert find_rivals([]) == ()


def test_replies_of_other_tokens_are_noticed() -> None:
    assert not replies_differ({0: [make_run(10)], 1: [make_run(20)]})
    assert replies_differ({0: [make_run(10)], 1: [make_run(20, first_id=5)]})


def test_the_curves_grow_with_the_run_under_way_and_state_no_finding_before_the_end() -> None:
    points = [point(0, 20), point(1, 25)]
    speeds = sweep_speed_chart(points, LivePoint(2, 30.0, 1.4))
    assert (list(speeds.series[0].x), list(speeds.series[0].y)) == (["0", "1", "2"], [20, 25, 30.0])
    assert speeds.title == "Tokens per second by drafts a step"
    assert sweep_speed_chart(points, ended=True).title.startswith("1 draft a step is fastest here")
    lengths = sweep_length_chart(points, LivePoint(2, 30.0, None))
    assert list(lengths.series[0].x) == ["0", "1"]
    assert sweep_length_chart(points, ended=True).title == "τ reaches 1.10 with 1 draft a step"
