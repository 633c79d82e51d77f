"""The embedded engine as a supervised child: the real server, with the closed-form engine inside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import httpx
import psutil
import pytest

from backend.embedded_process import EmbeddedProcess, EngineStage, read_stage

CHILD = """
import sys
from backend.embedded.__main__ import main
from tests.closed_form_engine import ClosedFormEngine
sys.exit(main(sys.argv[1:], lambda options, progress: ClosedFormEngine()))
"""
COMMAND = (sys.executable, "-u", "-c", CHILD)
ANY_PORTS = ("--port", "0", "--baseline-port", "0")
PATIENCE = 30.0


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    return bool(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)


@pytest.fixture
def process() -> Iterator[EmbeddedProcess]:
    made = EmbeddedProcess(ANY_PORTS, COMMAND)
    made.start()
    wait_for(lambda: made.stage.name != "loading")
    yield made
    made.stop()


def test_it_is_ready_at_two_addresses_and_gone_after_stop(process: EmbeddedProcess) -> None:
    stage, pid = process.stage, process.pid
    assert stage.name == "ready" and stage.eagle_url and stage.baseline_url and pid
    for url in (stage.eagle_url, stage.baseline_url):
        assert httpx.get(f"{url}/server_info").status_code == 200
    process.stop()
    assert not is_running(pid)


def test_an_engine_that_dies_is_started_again(process: EmbeddedProcess) -> None:
    pid = process.pid
    assert pid
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: process.pid != pid and process.stage.name == "ready")
    url = process.stage.eagle_url
    assert url and httpx.get(f"{url}/server_info").status_code == 200


def test_an_engine_that_cannot_start_says_why_and_is_not_tried_again() -> None:
    process = EmbeddedProcess(["--port", "0", "--max-running", "0"], COMMAND)
    process.start()
    wait_for(lambda: process.stage.name == "failed")
    assert "--max-running must be at least 1" in process.stage.message
    process.stop()


def test_the_engine_does_not_outlive_an_app_that_is_killed() -> None:
    script = (
        "import sys, time; from backend.embedded_process import EmbeddedProcess\n"
        f"process = EmbeddedProcess({ANY_PORTS!r}, {COMMAND!r}); process.start()\n"
        "while process.stage.name == 'loading': time.sleep(0.05)\n"
        "print(process.pid, flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_running(child)
        parent.kill()
    wait_for(lambda: not is_running(child))


def test_what_is_fetched_first_is_told_and_becomes_arguments() -> None:
    seen: list[EngineStage] = []

    def fetch(report: Callable[[EngineStage], None]) -> list[str]:
        report(EngineStage("loading", "Downloading", 0.5))
        seen.append(made.stage)
        return ["--max-running", "0"]  # an argument that the engine refuses by name

    made: EmbeddedProcess = EmbeddedProcess(ANY_PORTS, COMMAND, prepare=fetch)
    made.start()
    wait_for(lambda: made.stage.name == "failed")
    assert seen == [EngineStage("loading", "Downloading", 0.5)]
    assert "--max-running must be at least 1" in made.stage.message
    made.stop()


def test_a_download_that_fails_is_told_and_no_engine_is_started() -> None:
    def fetch(_report: Callable[[EngineStage], None]) -> list[str]:
        raise RuntimeError("acme/model is gated: accept its terms.")

    process = EmbeddedProcess(ANY_PORTS, COMMAND, prepare=fetch)
    process.start()
    wait_for(lambda: process.stage.name == "failed")
    assert process.stage.message == "acme/model is gated: accept its terms."
    assert process.pid is None
    process.stop()


def test_what_is_no_stage_is_ignored() -> None:
    assert read_stage("hello") is None
    assert read_stage("[1]") is None
    assert read_stage('{"stage": "loading", "message": "Reading", "fraction": 0.5}') == EngineStage(
        "loading", "Reading", 0.5
    )
    assert read_stage('{"stage": "error", "message": "No weights"}') == EngineStage("failed", "No weights")
