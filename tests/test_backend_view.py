"""What the Backend tab says: states, load, a command without keys, published figures with their source."""

from __future__ import annotations

import json
import time
from pathlib import Path

from backend.catalog import find_pair, find_published, make_pair
from backend.lanes import lane_from_facts
from backend.server_load import ServerLoad, load_from_answers
from backend.sglang.launch_spec import describe_eagle
from backend.sglang.state import ServerState, Stage
from ui.backend_view import LaneReport, render_published, render_report, show_launch, show_log
from ui.numbers import DASH

CAPTURED = json.loads((Path(__file__).parent / "captures" / "server_info.json").read_text())
LOADS = {"loads": [{"num_running_reqs": 2, "num_waiting_reqs": 1}, {"num_running_reqs": 1, "num_waiting_reqs": 0}]}


def test_the_load_of_a_real_server_is_read() -> None:
    load = load_from_answers(LOADS, CAPTURED)
    assert (load.running, load.queued) == (3, 1)
    assert load.acceptance_length == CAPTURED["internal_states"][0]["avg_spec_accept_length"]
    assert load.throughput == CAPTURED["internal_states"][0]["last_gen_throughput"]


def test_a_server_that_does_not_tell_its_load_has_none() -> None:
    assert load_from_answers({}, {}) == ServerLoad()
    card = render_report(LaneReport("EAGLE-3", lane_from_facts("EAGLE-3", "http://host:1", CAPTURED, {})))
    assert f"{DASH} running, {DASH} queued" in card


def test_a_failed_server_shows_reason_and_remedy() -> None:
    server = ServerState("EAGLE-3", Stage.FAILED, time.time(), reason="Out of <memory>.", remedy="Free some.")
    card = render_report(LaneReport("EAGLE-3", server=server))
    assert "failed since" in card and "Out of &lt;memory&gt;. Free some." in card


def test_the_command_can_be_copied_and_holds_no_key() -> None:
    spec = describe_eagle(make_pair("t", "d", 3), Path("python"), "0.5.23", 30000, "--api-key", "secret")
    command = show_launch(LaneReport("EAGLE-3", spec=spec))
    assert command.startswith("python -m sglang.launch_server --model-path t")
    assert "secret" not in command and "--api-key ***" in command


def test_the_command_of_an_attached_server_is_the_one_it_tells() -> None:
    lane = lane_from_facts("EAGLE-3", "http://host:1", CAPTURED, {})
    command = show_launch(LaneReport("EAGLE-3", lane))
    assert command.startswith("python -m sglang.launch_server --model-path models/chain")


def test_the_log_is_there_only_for_servers_launched_here() -> None:
    assert show_log(LaneReport("EAGLE-3")) == ""
    server = ServerState("EAGLE-3", Stage.READY, time.time(), log_tail=("one", "two"))
    assert show_log(LaneReport("EAGLE-3", server=server)) == "one\ntwo"


def test_published_figures_carry_their_source_and_say_they_are_not_measured_here() -> None:
    pair = find_pair("kimi-k2")
    shown = render_published(pair)
    assert "not measured here" in shown
    assert shown.count(f"read {find_published(pair)[0].read}") == len(find_published(pair)) > 0


def test_a_pair_of_ones_own_has_no_published_figures() -> None:
    assert render_published(make_pair("t", "d", 3)) == ""
