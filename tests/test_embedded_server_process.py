"""`python -m backend.embedded` as a process: what it prints, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from backend.embedded.__main__ import EXIT_ENGINE_FAILED, EXIT_PORT_IN_USE, parse_options
from backend.embedded.server import bind_port

WAIT = 30.0  # seconds until a test gives up
SERVE = """
import sys
from backend.embedded.__main__ import main
from tests.closed_form_engine import ClosedFormEngine

def load(options, progress):
    progress("Reading the weights", 0.5)
    if options.dtype == "broken":
        raise RuntimeError("The weights are damaged; delete the cache folder and start again.")
    return ClosedFormEngine()

sys.exit(main(sys.argv[1:], load))
"""


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, "-c", SERVE, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            assert pipe is not None
            pipe.close()


def read_stage(child: subprocess.Popen[str]) -> dict[str, Any]:
    assert child.stdout is not None
    stage: dict[str, Any] = json.loads(child.stdout.readline())
    return stage


def read_until_ready(child: subprocess.Popen[str]) -> dict[str, Any]:
    stage = read_stage(child)
    while stage["stage"] == "loading":
        stage = read_stage(child)
    return stage


def test_it_prints_its_progress_and_then_its_addresses() -> None:
    with running("--port", "0") as child:
        assert read_stage(child) == {"stage": "loading", "message": "Reading the weights", "fraction": 0.5}
        ready = read_stage(child)
        assert ready["stage"] == "ready"
        info = [httpx.get(ready[key] + "/server_info").json() for key in ("eagle_url", "baseline_url")]
        assert [facts["speculative_algorithm"] for facts in info] == ["EAGLE3", None]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM to send")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_even_while_it_generates(number: signal.Signals) -> None:
    with running("--port", "0") as child:
        url = read_until_ready(child)["eagle_url"]
        body = {"prompt": [9], "max_tokens": 4000, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", url + "/v1/completions", json=body) as response:
            next(response.iter_lines())
            child.send_signal(number)
            assert child.wait(WAIT) == 0


def test_it_ends_when_the_one_that_started_it_is_gone() -> None:
    with running("--port", "0") as child:
        read_until_ready(child)
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(WAIT) == 0


def test_a_port_in_use_is_told_before_anything_is_loaded() -> None:
    taken = bind_port("127.0.0.1", 0)
    taken.listen()
    with taken, running("--port", str(taken.getsockname()[1])) as child:
        stage = read_stage(child)
        assert stage["stage"] == "error" and "is in use" in stage["message"]
        assert child.wait(WAIT) == EXIT_PORT_IN_USE


def test_an_engine_that_cannot_be_loaded_is_told_in_one_line() -> None:
    with running("--port", "0", "--dtype", "broken") as child:
        assert read_until_ready(child) == {
            "stage": "error",
            "message": "The weights are damaged; delete the cache folder and start again.",
        }
        assert child.wait(WAIT) == EXIT_ENGINE_FAILED


def test_it_stops_quickly() -> None:
    with running("--port", "0") as child:
        read_until_ready(child)
        started = time.monotonic()
        child.terminate()
        child.wait(WAIT)
        assert time.monotonic() - started < 10


def test_the_baseline_port_follows_the_port() -> None:
    options = parse_options(["--port", "31000"])
    assert (options.port, options.baseline_port) == (31000, 31001)


@pytest.mark.parametrize(
    "arguments", [["--port", "-1"], ["--port", "5", "--baseline-port", "5"], ["--max-running", "0"]]
)
def test_wrong_options_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse_options(arguments)
    assert stopped.value.code == 2
    assert "must" in capsys.readouterr().err
