"""What the charts say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ui.charts import Arrivals, ReferenceSpeed, SpeedLine, accepted_chart, place_chart, progress_chart, speed_chart

EAGLE = SpeedLine("EAGLE-3", [0.5, 1.0], [50.0, 60.0], 58.4)
BASELINE = SpeedLine("Baseline", [0.5, 2.0], [27.0, 28.0], 27.8)


def test_the_speed_chart_states_both_speeds_measured() -> None:
    assert speed_chart(EAGLE, BASELINE).title == "58 vs 28 tokens/s"


def test_two_speeds_that_differ_never_read_the_same() -> None:
    slow = SpeedLine("Baseline", [0.5, 1.0], [57.0, 59.0], 57.6)
    assert speed_chart(EAGLE, slow).title == "58.4 vs 57.6 tokens/s"
    assert speed_chart(EAGLE, SpeedLine("Baseline", [0.5], [6.4], 6.4)).title == "58.4 vs 6.4 tokens/s"


def test_a_reference_line_is_dated_and_not_compared_with() -> None:
    chart = speed_chart(EAGLE, None, ReferenceSpeed(27.8, "1 Dec 00:12 UTC"))
    assert chart.series[1].name == "baseline, measured 1 Dec 00:12 UTC"
    assert "27" not in chart.title and "28" not in chart.title


def test_lanes_are_told_apart_without_colour() -> None:
    lines = speed_chart(EAGLE, BASELINE).series
    assert lines[0].dash != lines[1].dash


def test_the_most_frequent_number_of_accepted_drafts_is_the_finding() -> None:
    assert accepted_chart([1, 2, 1, 12]).title == "75 % of steps accept all 3"
    assert accepted_chart([6, 2, 1, 1]).title == "60 % of steps accept none"
    assert accepted_chart([3, 7]).title == "70 % of steps accept their draft"
    assert accepted_chart([5, 0, 0, 5]).title == "As many steps accept none as all 3"


def test_without_a_verify_step_there_is_no_bar_and_a_word_instead() -> None:
    for chart in (accepted_chart(None), accepted_chart([0, 0]), place_chart(None), place_chart([0, 0])):
        assert not chart.series
        assert chart.empty


@given(st.lists(st.integers(0, 50), min_size=2, max_size=8).filter(any))
def test_acceptance_never_rises_with_the_place(histogram: list[int]) -> None:
    shares = list(place_chart(histogram).series[0].y)
    assert shares == sorted(shares, reverse=True)
    assert all(0 <= share <= 100 for share in shares)


def test_a_later_finish_with_the_draft_is_said_as_plainly() -> None:
    slow = progress_chart(Arrivals("EAGLE-3", [1.0, 3.0], True), Arrivals("Baseline", [1.0, 2.0], True))
    assert slow.title == "EAGLE-3 finished 1.0 s later than Baseline"


def test_a_gap_too_small_to_be_written_is_no_finding() -> None:
    chart = progress_chart(Arrivals("EAGLE-3", [1.0, 2.01], True), Arrivals("Baseline", [1.0, 1.98], True))
    assert chart.title == "Both finished after 2.0 s"


@given(st.lists(st.floats(0, 100), min_size=1, max_size=2000))
def test_a_thinned_curve_still_ends_at_the_last_token(times: list[float]) -> None:
    chart = progress_chart(Arrivals("EAGLE-3", sorted(times), True), Arrivals("Baseline", [], False))
    assert chart.series[0].y[-1] == len(times)
    assert len(chart.series[0].y) <= 602
