"""The command: options, ports and a clean end."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

import app
from backend.ports import NoFreePortError, find_free_port
from ui.options import read_options

ROOT = Path(app.__file__).parent


def test_a_baseline_alone_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_options(["--baseline-url", "http://127.0.0.1:30001"])
    assert "--eagle-url" in capsys.readouterr().err


def test_options_behind_two_dashes_go_to_the_engine() -> None:
    assert read_options(["--port", "8000", "--", "--num-steps", "4"]).engine_options == ["--num-steps", "4"]


def test_a_port_in_use_leads_to_the_next_free_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert port < find_free_port("127.0.0.1", port) <= port + 100


def test_no_free_port_is_told_with_the_remedy() -> None:
    with pytest.raises(NoFreePortError, match="--port"):
        find_free_port("127.0.0.1", 65536)


def test_the_app_serves_without_its_servers_and_ends_at_once_when_interrupted() -> None:
    port = find_free_port("127.0.0.1", 17900)
    command = [sys.executable, "app.py", "--no-browser", "--port", str(port), "--eagle-url", "http://127.0.0.1:9"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        assert running.stdout is not None
        assert str(port) in running.stdout.readline()
        assert httpx.get(f"http://127.0.0.1:{port}/").status_code == 200
        assert httpx.get(f"http://127.0.0.1:{port}/eaglelens/plotly.min.js").status_code == 200
        begun = time.monotonic()
        running.send_signal(signal.SIGINT)
        assert running.wait(20) == 0
        assert time.monotonic() - begun < 15
