"""Supervision: stages, reasons and remedies, restarts, and no process left on any way out."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from backend.catalog import Speculation
from backend.sglang.command import LaunchRefusedError
from backend.sglang.launch_spec import LaunchSpec
from backend.sglang.state import Stage
from backend.sglang.supervisor import Patience, Supervisor
from tests.sglang_cpu.server import free_port
from tests.sglang_standin import READY

SOON = 20.0


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    one = Supervisor(tmp_path / "logs", patience=Patience(stop=1.0))
    yield one
    one.stop()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def child_of(lines: tuple[str, ...]) -> int:
    return next(int(line.split()[1]) for line in lines if line.startswith("child "))


def test_a_server_is_ready_when_it_says_so_and_answers(
    supervisor: Supervisor, standin: Callable[[str], LaunchSpec]
) -> None:
    spec = standin(READY)
    supervisor.start(spec)
    state = supervisor.wait_until_settled(SOON)
    assert state.stage == Stage.READY
    assert state.base_url == spec.base_url
    assert state.log is not None
    assert "sglang.launch_server" in state.log.read_text()


def test_the_stages_are_told_from_the_log(supervisor: Supervisor, standin: Callable[[str], LaunchSpec]) -> None:
    supervisor.start(standin("say Load weight begin. avail mem=79 GB; wait 600"))
    wait_until(lambda: supervisor.state.stage == Stage.LOADING_WEIGHTS)
    assert supervisor.state.log_tail[-1] == "Load weight begin. avail mem=79 GB"


def test_a_crash_tells_its_reason_and_a_remedy(supervisor: Supervisor, standin: Callable[[str], LaunchSpec]) -> None:
    supervisor.start(standin("say torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB; exit 1"))
    state = supervisor.wait_until_settled(SOON)
    assert state.stage == Stage.FAILED
    assert state.reason == "The memory of the device is exhausted."
    assert "--mem-fraction-static" in (state.remedy or "")


def test_a_server_killed_from_outside_is_noticed_and_starts_again(
    supervisor: Supervisor, standin: Callable[[str], LaunchSpec]
) -> None:
    supervisor.start(standin(READY))
    first = supervisor.wait_until_settled(SOON)
    assert first.pid is not None
    os.killpg(first.pid, signal.SIGKILL)
    wait_until(lambda: supervisor.state.stage == Stage.FAILED)
    assert supervisor.state.reason == "The server was killed."
    supervisor.restart()
    again = supervisor.wait_until_settled(SOON)
    assert again.stage == Stage.READY
    assert again.pid != first.pid
    assert again.starts == 2


def test_a_taken_port_is_told_before_anything_starts(
    supervisor: Supervisor, standin: Callable[[str], LaunchSpec]
) -> None:
    with closing(socket.socket()) as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        supervisor.start(replace(standin(READY), port=other.getsockname()[1]))
    assert supervisor.state.stage == Stage.FAILED
    assert supervisor.state.reason == "The port is in use."
    assert supervisor.state.pid is None


def test_a_silent_start_is_given_up(tmp_path: Path, standin: Callable[[str], LaunchSpec]) -> None:
    supervisor = Supervisor(tmp_path / "logs", patience=Patience(silence=0.5))
    supervisor.start(standin("say Load weight begin; wait 600"))
    state = supervisor.wait_until_settled(SOON)
    assert state.stage == Stage.FAILED
    assert "loading weights" in (state.reason or "")
    assert state.pid is not None
    assert not is_running(state.pid)


def test_eagle3_without_a_draft_never_starts(supervisor: Supervisor, standin: Callable[[str], LaunchSpec]) -> None:
    with pytest.raises(LaunchRefusedError):
        supervisor.start(replace(standin(READY), speculation=Speculation("EAGLE3", 3, 1, 4)))
    assert supervisor.state.stage == Stage.IDLE


def test_a_python_that_does_not_exist_is_named(supervisor: Supervisor, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="--sglang-python"):
        supervisor.start(LaunchSpec("Baseline", tmp_path / "nowhere", "0.5.23", "target", port=free_port()))


def test_stopping_leaves_no_process_not_even_a_deaf_one(
    supervisor: Supervisor, standin: Callable[[str], LaunchSpec]
) -> None:
    supervisor.start(standin("deaf; child; " + READY))
    state = supervisor.wait_until_settled(SOON)
    assert state.stage == Stage.READY, state
    assert state.pid is not None
    assert is_running(child_of(state.log_tail))
    supervisor.stop()
    assert supervisor.state.stage == Stage.STOPPED
    assert not is_running(state.pid)
    assert not is_running(child_of(state.log_tail))


def test_killing_the_app_leaves_no_process(tmp_path: Path, standin: Callable[[str], LaunchSpec]) -> None:
    spec = standin("child; " + READY)
    app = subprocess.Popen(
        [sys.executable, "-c", APP, str(spec.python), str(spec.port), str(tmp_path / "logs")],
        env={**os.environ, "EAGLELENS_STANDIN": spec.environment["EAGLELENS_STANDIN"]},
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert app.stdout is not None
    pids = [int(word) for word in app.stdout.readline().split()]
    assert len(pids) == 2
    assert all(map(is_running, pids))
    app.kill()
    app.wait()
    wait_until(lambda: not any(map(is_running, pids)))


APP = textwrap.dedent("""
    import sys, time
    from pathlib import Path
    from backend.sglang.launch_spec import LaunchSpec
    from backend.sglang.supervisor import Supervisor
    python, port, logs = sys.argv[1:]
    supervisor = Supervisor(Path(logs))
    supervisor.start(LaunchSpec("Baseline", Path(python), "0.5.23", "target", port=int(port)))
    state = supervisor.wait_until_settled(20)
    child = next(line.split()[1] for line in state.log_tail if line.startswith("child "))
    print(state.pid, child, flush=True)
    time.sleep(600)
""")


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's part of it exists on Linux")
def test_killing_the_warden_leaves_no_process(supervisor: Supervisor, standin: Callable[[str], LaunchSpec]) -> None:
    supervisor.start(standin("child; " + READY))
    state = supervisor.wait_until_settled(SOON)
    assert state.stage == Stage.READY, state
    assert state.pid is not None
    psutil.Process(state.pid).parent().kill()
    wait_until(lambda: not is_running(state.pid or 0) and not is_running(child_of(state.log_tail)))
    wait_until(lambda: supervisor.state.stage == Stage.FAILED)
