"""What the page says of the lanes that it found, above everything else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backend.lanes import Lane, lane_from_facts
from ui.engines import EngineState
from ui.status import ShareState, list_differences, render_banner

CAPTURED = json.loads((Path(__file__).parent / "captures" / "server_info.json").read_text())
EAGLE = {**CAPTURED, "speculative_eagle_topk": 1}
PLAIN = {**CAPTURED, "speculative_algorithm": None}


def make_lane(label: str, facts: dict[str, object], model: str = "chain", **changes: object) -> Lane:
    return lane_from_facts(label, "http://host:1", {**facts, **changes} if facts else {}, {"data": [{"id": model}]})


def banner(eagle: Lane, baseline: Lane | None) -> str:
    return render_banner(EngineState(eagle, baseline), ShareState())


def test_a_matching_pair_of_servers_needs_no_banner() -> None:
    assert banner(make_lane("EAGLE-3", EAGLE), make_lane("Baseline", PLAIN)) == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"speculative_algorithm": None}, "does not speculate"),
        ({"speculative_algorithm": "STANDALONE"}, "not EAGLE-3"),
        ({"version": "0.5.6"}, "older /generate"),
        ({"stream_interval": 8}, "--stream-interval 1"),
        ({"env": "SGLANG_SIMULATE_ACC_LEN=3"}, "simulates its acceptance"),
        ({"dtype": "float16"}, "differ in dtype (EAGLE-3: float16, Baseline: bfloat16)"),
        ({"model_path": "other/model"}, "differ in model_path"),
        ({"speculative_adaptive": True}, "--speculative-adaptive"),
    ],
)
def test_what_is_wrong_with_an_attached_server_is_said(changes: dict[str, Any], said: str) -> None:
    assert said in banner(make_lane("EAGLE-3", EAGLE, **changes), make_lane("Baseline", PLAIN))


def test_a_baseline_that_speculates_is_said() -> None:
    assert "it is no baseline" in banner(make_lane("EAGLE-3", EAGLE), make_lane("Baseline", EAGLE))


def test_behind_a_router_the_names_of_the_models_are_compared() -> None:
    differences = list_differences(make_lane("EAGLE-3", {}, "one"), make_lane("Baseline", {}, "other"))
    assert len(differences) == 1
    assert "differ in model (EAGLE-3: one, Baseline: other)" in differences[0]


def test_what_a_draft_forces_is_no_difference() -> None:
    assert list_differences(make_lane("EAGLE-3", EAGLE), make_lane("Baseline", PLAIN, page_size=64)) == ()


def test_text_of_a_server_is_never_markup() -> None:
    shown = banner(make_lane("EAGLE-3", EAGLE, dtype="<img src=x>"), make_lane("Baseline", PLAIN))
    assert "<img" not in shown and "&lt;img" in shown
