"""Measuring a baseline that takes turns with its EAGLE-3 server: kept with its date, and EAGLE-3 is back after it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from backend.client import read_lane
from backend.events import Request, Sampling
from backend.kept_baselines import KeptBaselines
from backend.sglang.baseline_turn import BaselineTurn, Question
from backend.sglang.fit import Arrangement
from backend.sglang.launch_spec import LaunchSpec
from backend.sglang.pair_servers import PairServers
from backend.sglang.state import Stage
from backend.sglang.supervisor import Patience
from tests.sglang_standin import UP

SOON = 60.0
EAGLE, BASELINE = f"{UP}; speak EAGLE", f"{UP}; speak BASELINE"
QUESTION = Question("Hello", [{"role": "user", "content": "Hello"}], Sampling(max_tokens=21))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


@contextmanager
def taking_turns(eagle: LaunchSpec, baseline: LaunchSpec, logs: Path) -> Iterator[PairServers]:
    eagle = replace(eagle, label="EAGLE-3")
    servers = PairServers(eagle, baseline, Arrangement.TAKING_TURNS, logs, Patience(stop=1.0))
    servers.start()
    try:
        wait_until(lambda: servers.eagle.stage == Stage.READY)
        yield servers
    finally:
        servers.stop()


async def test_the_baseline_is_measured_kept_and_makes_room_again(
    standin: Callable[[str], LaunchSpec], tmp_path: Path
) -> None:
    kept = KeptBaselines(tmp_path / "baselines")
    turn = BaselineTurn(kept)
    before = time.time()
    with taking_turns(standin(EAGLE), standin(BASELINE), tmp_path / "logs") as servers:
        turn.start(servers, [QUESTION, replace(QUESTION, title="Again")])
        assert turn.state.phase == "running"
        wait_until(lambda: turn.state.phase != "running")
        assert (turn.state.phase, turn.state.message) == ("done", "2 prompts measured and kept.")
        wait_until(lambda: servers.eagle.stage == Stage.READY)
        assert servers.baseline.stage == Stage.STOPPED
        assert servers.eagle.base_url is not None
        lane = await read_lane(servers.eagle.base_url, "EAGLE-3")
    run = kept.find(lane, Request("", (1, 2, 3), QUESTION.sampling))
    assert run is not None
    assert (run.lane, run.num_steps, len(run.tokens), run.finish_reason) == ("Baseline", 0, 21, "length")
    assert before < run.started_at < time.time()
    assert "GB" in str(run.server["hardware"])
    assert [recording.title for recording in kept.list_newest(9)] == ["Again", "Hello"]


def test_a_baseline_that_cannot_start_is_told_and_eagle3_comes_back(
    standin: Callable[[str], LaunchSpec], tmp_path: Path
) -> None:
    turn = BaselineTurn(KeptBaselines(tmp_path / "baselines"))
    crash = standin("say torch.OutOfMemoryError: CUDA out of memory; exit 1")
    with taking_turns(standin(EAGLE), crash, tmp_path / "logs") as servers:
        turn.start(servers, [QUESTION])
        wait_until(lambda: turn.state.phase == "failed")
        assert "No baseline was measured." in turn.state.message and "memory" in turn.state.message
        wait_until(lambda: servers.eagle.stage == Stage.READY and servers.eagle.starts == 2)
    assert turn.state.phase == "failed"


def test_asking_for_eagle3_meanwhile_ends_the_measurement(standin: Callable[[str], LaunchSpec], tmp_path: Path) -> None:
    turn = BaselineTurn(KeptBaselines(tmp_path / "baselines"))
    with taking_turns(standin(EAGLE), standin("wait 600"), tmp_path / "logs") as servers:
        turn.start(servers, [QUESTION])
        wait_until(lambda: servers.baseline.stage == Stage.STARTING)
        servers.show_eagle()
        wait_until(lambda: turn.state.phase == "failed")
        assert "something else" in turn.state.message
        wait_until(lambda: servers.eagle.stage == Stage.READY)
        assert servers.eagle.starts == 2


def test_an_app_that_ends_meanwhile_starts_nothing_again(standin: Callable[[str], LaunchSpec], tmp_path: Path) -> None:
    turn = BaselineTurn(KeptBaselines(tmp_path / "baselines"))
    with taking_turns(standin(EAGLE), standin("wait 600"), tmp_path / "logs") as servers:
        turn.start(servers, [QUESTION])
        wait_until(lambda: servers.baseline.stage == Stage.STARTING)
        servers.stop()
        wait_until(lambda: turn.state.phase == "failed")
        servers.show_eagle()
        time.sleep(1)
        assert servers.eagle.stage == servers.baseline.stage == Stage.STOPPED
