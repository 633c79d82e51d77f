"""What a comparison concludes."""

from __future__ import annotations

from itertools import pairwise
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.comparison import (
    Leg,
    Trial,
    Weight,
    compare_facts,
    explain_difference,
    find_difference,
    hash_prompt,
    judge,
    plan_fair,
    share_hardware,
)
from backend.events import Counters
from tests.comparison_runs import make_run

IDS = [5, 6, 7, 8, 9]


def trial(left_speed: float = 20.0, right_speed: float = 10.0) -> Trial:
    return Trial(make_run("EAGLE-3", IDS, speed=left_speed), make_run("Baseline", IDS, speed=right_speed))


def test_each_lane_is_warmed_up_before_the_first_trial() -> None:
    assert plan_fair(1)[:2] == (Leg(0, None), Leg(1, None))


@given(st.integers(1, 9))
def test_the_order_of_the_lanes_alternates_from_trial_to_trial(trials: int) -> None:
    legs = plan_fair(trials)[2:]
    firsts = [legs[at].side for at in range(0, len(legs), 2)]
    assert [leg.trial for leg in legs] == [at // 2 for at in range(2 * trials)]
    assert all({legs[at].side, legs[at + 1].side} == {0, 1} for at in range(0, len(legs), 2))
    assert all(one != other for one, other in pairwise(firsts))
    assert abs(firsts.count(0) - firsts.count(1)) <= 1


def test_the_speedup_is_the_ratio_of_the_decode_speeds() -> None:
    verdict = judge([trial(20, 10)])
    assert verdict.speedup is not None
    assert verdict.speedup.median == pytest.approx(2.0)
    assert verdict.saved_seconds is not None
    assert verdict.saved_seconds.median == pytest.approx(0.4 - 0.2)


def test_a_slower_draft_is_a_speedup_below_one_and_costs_time() -> None:
    verdict = judge([trial(8, 10)])
    assert verdict.speedup is not None and verdict.speedup.median == pytest.approx(0.8)
    assert verdict.saved_seconds is not None and verdict.saved_seconds.median < 0


@given(st.lists(st.floats(1, 100), min_size=1, max_size=9))
def test_the_spread_over_trials_is_that_of_their_own_speedups(speeds: list[float]) -> None:
    verdict = judge([trial(speed, 10) for speed in speeds])
    assert verdict.speedup is not None and verdict.typical is not None
    assert verdict.speedup.median == pytest.approx(median(speed / 10 for speed in speeds))
    assert verdict.speedup.low == pytest.approx(min(speeds) / 10)
    assert verdict.speedup.high == pytest.approx(max(speeds) / 10)
    assert verdict.speedup.count == len(speeds)
    middle = sorted(speeds)[(len(speeds) - 1) // 2]
    assert speeds[verdict.typical] == pytest.approx(middle)


def test_a_show_keeps_no_speedup_but_its_speeds() -> None:
    verdict = judge([trial()], keep_speedup=False)
    assert verdict.speedup is None and verdict.saved_seconds is None
    assert verdict.speeds[0] is not None and verdict.speeds[0].median == pytest.approx(20)


@pytest.mark.parametrize("reason", [None, "abort"])
def test_a_trial_that_did_not_end_by_itself_is_no_part_of_the_verdict(reason: str | None) -> None:
    cut = Trial(make_run("EAGLE-3", IDS[:3], finish_reason=reason), make_run("Baseline", IDS))
    verdict = judge([cut, trial(30, 10)])
    assert len(verdict.trials) == 1
    assert verdict.same is True and verdict.difference is None
    assert verdict.speedup is not None and verdict.speedup.median == pytest.approx(3.0)
    assert judge([cut]).speedup is None and judge([cut]).same is None


def test_one_token_has_no_decode_speed_and_so_no_speedup() -> None:
    verdict = judge([Trial(make_run("EAGLE-3", [5]), make_run("Baseline", [5]))])
    assert verdict.speedup is None and verdict.typical == 0 and verdict.same is True


def test_acceptance_is_that_of_the_counters() -> None:
    counters = Counters(verify_steps=10, accepted=16, proposed=30, completion_tokens=5)
    left = make_run("EAGLE-3", IDS, counters=counters, num_steps=3)
    verdict = judge([Trial(left, make_run("Baseline", IDS))])
    assert verdict.acceptance_lengths[0] is not None and verdict.acceptance_lengths[0].median == pytest.approx(2.6)
    assert verdict.acceptance_rates[0] is not None and verdict.acceptance_rates[0].median == pytest.approx(16 / 30)
    assert verdict.acceptance_lengths[1] is None


@given(st.lists(st.integers(0, 3), max_size=60), st.lists(st.integers(0, 3), max_size=60))
def test_the_first_difference_is_where_the_shared_tokens_end(left: list[int], right: list[int]) -> None:
    found = find_difference(Trial(make_run("EAGLE-3", left), make_run("Baseline", right)))
    if left == right:
        assert found is None
        return
    assert found is not None
    assert left[: found.index] == right[: found.index]
    assert left[found.index : found.index + 1] != right[found.index : found.index + 1]
    assert (found.left is None) == (found.index == len(left))
    assert (found.right is None) == (found.index == len(right))
    assert "".join(f" w{id}" for id in left[: found.index]).endswith(found.before)


def test_a_difference_is_shown_in_its_context() -> None:
    left, right = [*range(100), 200, 201], [*range(100), 300, 301]
    found = find_difference(Trial(make_run("EAGLE-3", left), make_run("Baseline", right)))
    assert found is not None and found.left is not None and found.right is not None
    assert (found.left.piece, found.right.piece) == (" w200", " w300")
    assert found.before.endswith(" w98 w99") and not found.before.startswith(" w0")
    assert (found.left_after, found.right_after) == (" w201", " w301")


def test_a_difference_in_a_later_trial_is_found() -> None:
    parted = Trial(make_run("EAGLE-3", [5, 6]), make_run("Baseline", [5, 7]))
    verdict = judge([trial(), parted])
    assert verdict.same is False
    assert verdict.difference is not None and (verdict.difference.trial, verdict.difference.index) == (1, 1)


def test_without_token_ids_sameness_is_not_claimed() -> None:
    assert judge([Trial(make_run("EAGLE-3", [-1, -1]), make_run("Baseline", [-1, -1]))]).same is None


def test_the_reason_for_a_difference_fits_the_runs() -> None:
    def reason(temperature: float = 0.0, server: dict[str, object] | None = None) -> str:
        runs = (make_run(lane, [5], temperature=temperature, server=server) for lane in ("EAGLE-3", "Baseline"))
        return explain_difference(Trial(*runs))

    assert "sampled" in reason(temperature=0.7)
    assert "bfloat16 arithmetic" in reason(server={"dtype": "bfloat16"})
    assert "should not happen" in reason(server={"eaglelens": {"bit_exact": True}})
    assert "rounds differently" in reason(server={"eaglelens": {"bit_exact": False}})


def test_what_speculation_brings_with_it_is_no_difference() -> None:
    left = {"version": "0.5.23", "speculative_algorithm": "EAGLE3", "launch_command": "a", "dtype": "bfloat16"}
    right = {"version": "0.5.23", "speculative_algorithm": None, "launch_command": "b", "dtype": "bfloat16"}
    assert compare_facts(left, right) == ()


def test_another_dtype_is_warned_of_and_another_attention_backend_only_noted() -> None:
    left = {"dtype": "bfloat16", "attention_backend": "triton"}
    right = {"dtype": "float16", "attention_backend": "fa3"}
    found = {fact.name: fact.weight for fact in compare_facts(left, right)}
    assert found == {"dtype": Weight.WARNING, "attention_backend": Weight.NOTE}


def test_the_same_model_in_another_folder_is_the_same() -> None:
    assert compare_facts({"model_path": "/a/Qwen3-8B/"}, {"model_path": "Qwen/Qwen3-8B"}) == ()
    assert len(compare_facts({"model_path": "Qwen3-8B"}, {"model_path": "Qwen3-4B"})) == 1


def test_lanes_on_one_host_share_its_hardware() -> None:
    assert share_hardware("http://127.0.0.1:30000", "http://localhost:30001")
    assert not share_hardware("http://127.0.0.1:30000", "http://box:30000")


@given(st.lists(st.integers(0, 200_000)), st.lists(st.integers(0, 200_000)))
def test_different_prompts_have_different_names(one: list[int], other: list[int]) -> None:
    assert (hash_prompt(one) == hash_prompt(other)) == (one == other)
