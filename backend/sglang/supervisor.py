"""Runs one SGLang server: starts it, follows its log, says why it ended, starts it again, and leaves no process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import httpx

from backend.lanes import hide_secrets
from backend.ports import is_free
from backend.sglang import warden
from backend.sglang.command import build_command, build_environment, show_command
from backend.sglang.launch_spec import LaunchSpec
from backend.sglang.server_log import Failure, clean_line, explain_end, read_stage
from backend.sglang.state import RUNNING, SETTLED, ServerState, Stage

POLL = 0.25
WARDEN_MARGIN = 5.0  # seconds for the warden to use force
ORDER = tuple(Stage)
TAIL_LINES = 200
LOCAL_HOSTS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True)
class Patience:
    """Seconds that a start may take in all and without a word in the log, and a polite stop before force is used."""

    start: float = 3600.0
    silence: float = 900.0
    stop: float = 10.0


class Supervisor:
    """One server at a time. Every method may be called from any thread; `state` never waits for anything."""

    def __init__(self, log_folder: Path, label: str = "SGLang", patience: Patience | None = None) -> None:
        self._folder = log_folder
        self._patience = patience or Patience()
        self._acting = threading.RLock()  # start, stop and restart, one after the other
        self._changed = threading.Condition()
        self._state = ServerState(label, Stage.IDLE, time.time())
        self._spec: LaunchSpec | None = None
        self._run: _Run | None = None

    @property
    def state(self) -> ServerState:
        """The latest snapshot."""
        with self._changed:
            return self._state

    @property
    def spec(self) -> LaunchSpec | None:
        """What was started last."""
        return self._spec

    def start(self, spec: LaunchSpec) -> None:
        """Start a server, ending the one before. Returns at once; `wait_until_settled` waits.

        Raises LaunchRefusedError where `spec` cannot work, and FileNotFoundError where its Python does not exist;
        a port that is taken and a crash are told by `state`.
        """
        with self._acting:
            command = build_command(spec)
            if not spec.python.exists():
                raise FileNotFoundError(f"There is no Python at {spec.python}: check --sglang-python.")
            self.stop()
            self._spec = spec
            starts = self.state.starts + 1
            started = ServerState(spec.label, Stage.STARTING, time.time(), spec.base_url, starts=starts)
            if not is_free(spec.host, spec.port):
                taken = explain_end([f"port {spec.port} is already in use"], None)
                self._publish(replace(started, stage=Stage.FAILED, reason=taken.reason, remedy=taken.remedy))
                return
            self._run = _Run(spec, command, self._open_log(spec), self._patience, started, self._publish)
            self._run.begin()

    def restart(self) -> None:
        """Start the last server again. Raises RuntimeError when there was none."""
        with self._acting:
            if self._spec is None:
                raise RuntimeError("No server has been started yet.")
            self.start(self._spec)

    def stop(self) -> None:
        """End the server and everything it started; returns when nothing of it is left."""
        with self._acting:
            if self._run is not None:
                self._run.end()
                self._run = None

    def wait_until_settled(self, timeout: float | None = None) -> ServerState:
        """Wait until the server is ready, or has failed or stopped; returns the state then, or at the timeout."""
        with self._changed:
            self._changed.wait_for(lambda: self._state.stage in SETTLED, timeout)
            return self._state

    def _publish(self, state: ServerState) -> None:
        with self._changed:
            self._state = state
            self._changed.notify_all()

    def _open_log(self, spec: LaunchSpec) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        log = self._folder / f"sglang-{spec.port}-{stamp}-{self.state.starts + 1}.log"
        log.write_text(f"$ {hide_secrets(show_command(spec))}\n", encoding="utf-8")
        return log


class _Run:
    """One life of a server."""

    def __init__(
        self,
        spec: LaunchSpec,
        command: tuple[str, ...],
        log: Path,
        patience: Patience,
        state: ServerState,
        publish: Callable[[ServerState], None],
    ) -> None:
        self._spec = spec
        self._command = command
        self._log = log
        self._patience = patience
        self._state = replace(state, log=log)
        self._publish = publish
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._unfinished = ""
        self._said_ready = False
        self._showing = threading.Lock()
        self._ending = threading.Event()
        self._warden: subprocess.Popen[str] | None = None
        self._watcher = threading.Thread(target=self._watch, name=f"sglang-{spec.port}", daemon=True)

    def begin(self) -> None:
        with self._log.open("ab") as output:
            self._warden = subprocess.Popen(
                [sys.executable, "-I", warden.__file__, str(self._patience.stop), *self._command],
                env={**os.environ, **build_environment(self._spec)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                start_new_session=True,
            )
        self._show(pid=_read_pid(self._warden.stdout))
        self._watcher.start()

    def end(self) -> None:
        self._ending.set()
        if self._state.stage in RUNNING:
            self._show(stage=Stage.STOPPING, since=time.time())
        self._close()
        self._watcher.join()

    def _watch(self) -> None:
        with self._log.open(encoding="utf-8", errors="replace") as log:
            self._tail.append(clean_line(log.readline()))  # the command itself, which says nothing of the stage
            failure = self._follow(log)
            status = self._close()
            self._read(log)
        if self._ending.is_set():
            self._show(stage=Stage.STOPPED, since=time.time())
            return
        failure = failure or explain_end(tuple(self._tail), status)
        self._show(stage=Stage.FAILED, since=time.time(), reason=failure.reason, remedy=failure.remedy)

    def _follow(self, log: IO[str]) -> Failure | None:
        """Follow the log until the server ends (None), takes too long, or is to be stopped (None)."""
        began = heard = time.monotonic()
        assert self._warden is not None
        while self._warden.poll() is None and not self._ending.wait(POLL):
            lines = self._read(log)
            if lines:
                heard = time.monotonic()
            if self._state.stage == Stage.READY:
                continue
            self._advance(lines)
            now = time.monotonic()
            if now - began > self._patience.start or now - heard > self._patience.silence:
                return Failure(
                    f"The server was not ready after {now - began:.0f} s and has been stopped "
                    f"(last stage: {self._state.stage}).",
                    "The end of the log shows where it stood; a large model on a slow disk may need longer.",
                )
        return None

    def _advance(self, lines: list[str]) -> None:
        self._said_ready = self._said_ready or read_stage(lines) == Stage.READY
        reached = read_stage(lines)
        if self._said_ready:
            reached = Stage.READY if _answers(self._spec) else Stage.WARMING_UP
        if ORDER.index(reached) > ORDER.index(self._state.stage):
            self._show(stage=reached, since=time.time())

    def _read(self, log: IO[str]) -> list[str]:
        """The lines completed since the last call; the log may end in the middle of one."""
        *complete, self._unfinished = (self._unfinished + log.read()).split("\n")
        lines = [clean_line(line) for line in complete]
        if lines:
            self._tail.extend(lines)
            self._show()
        return lines

    def _close(self) -> int | None:
        """Let the warden end the server; end the group here too should the warden be gone. Returns its status."""
        child = self._warden
        if child is None:
            return None
        if child.stdin is not None and not child.stdin.closed:
            child.stdin.close()
        try:
            status: int | None = child.wait(self._patience.stop + WARDEN_MARGIN)
        except subprocess.TimeoutExpired:
            child.kill()
            status = child.wait()
        if self._state.pid is not None:
            warden.end_group(self._state.pid, self._patience.stop)
        return status

    def _show(self, **changes: Any) -> None:
        with self._showing:
            self._state = replace(self._state, log_tail=tuple(self._tail), **changes)
            self._publish(self._state)


def _read_pid(output: IO[str] | None) -> int | None:
    line = output.readline().strip() if output is not None else ""
    return int(line) if line.isdigit() else None


def _answers(spec: LaunchSpec) -> bool:
    """Whether the server answers the request that costs it nothing."""
    host = LOCAL_HOSTS.get(spec.host, spec.host)
    try:
        reply = httpx.get(f"{replace(spec, host=host).base_url}/model_info", timeout=5, trust_env=False)
    except httpx.TransportError:
        return False
    return reply.status_code in (httpx.codes.OK, httpx.codes.UNAUTHORIZED)
