"""Two servers of one pair: one after the other, or taking turns, and none left."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from backend.sglang.fit import Arrangement
from backend.sglang.launch_spec import LaunchSpec
from backend.sglang.pair_servers import PairServers
from backend.sglang.state import Stage
from backend.sglang.supervisor import Patience
from tests.sglang_standin import READY

SOON = 20.0
QUICK = Patience(stop=1.0)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def test_the_baseline_starts_when_the_drafting_server_is_ready(
    standin: Callable[[str], LaunchSpec], tmp_path: Path
) -> None:
    servers = PairServers(standin("wait 1; " + READY), standin(READY), Arrangement.BESIDE, tmp_path / "logs", QUICK)
    servers.start()
    wait_until(lambda: servers.baseline.stage == Stage.READY)
    assert servers.eagle.stage == Stage.READY
    assert servers.eagle.log is not None
    assert servers.baseline.log is not None
    assert servers.baseline.log.stat().st_ctime > servers.eagle.log.stat().st_ctime
    servers.stop()
    assert servers.eagle.stage == servers.baseline.stage == Stage.STOPPED


def test_the_baseline_does_not_start_after_a_drafting_server_that_failed(
    standin: Callable[[str], LaunchSpec], tmp_path: Path
) -> None:
    servers = PairServers(standin("exit 1"), standin(READY), Arrangement.BESIDE, tmp_path / "logs", QUICK)
    servers.start()
    wait_until(lambda: servers.eagle.stage == Stage.FAILED)
    time.sleep(1)
    assert servers.baseline.stage == Stage.IDLE
    servers.stop()


def test_servers_that_take_turns_never_run_at_once(standin: Callable[[str], LaunchSpec], tmp_path: Path) -> None:
    servers = PairServers(standin(READY), standin(READY), Arrangement.TAKING_TURNS, tmp_path / "logs", QUICK)
    servers.start()
    wait_until(lambda: servers.eagle.stage == Stage.READY)
    assert servers.baseline.stage == Stage.IDLE
    servers.show_baseline()
    wait_until(lambda: servers.baseline.stage == Stage.READY)
    assert servers.eagle.stage == Stage.STOPPED
    servers.show_eagle()
    wait_until(lambda: servers.eagle.stage == Stage.READY)
    wait_until(lambda: servers.baseline.stage == Stage.STOPPED)
    servers.stop()


def test_stopping_during_a_start_stops_what_was_to_follow(standin: Callable[[str], LaunchSpec], tmp_path: Path) -> None:
    servers = PairServers(standin("wait 600"), standin(READY), Arrangement.BESIDE, tmp_path / "logs", QUICK)
    servers.start()
    wait_until(lambda: servers.eagle.stage == Stage.STARTING and servers.eagle.pid is not None)
    servers.stop()
    time.sleep(1)
    assert (servers.eagle.stage, servers.baseline.stage) == (Stage.STOPPED, Stage.IDLE)
