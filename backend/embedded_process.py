"""The embedded engine as a child process: started, watched, started again when it dies, and never left behind."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

RESTARTS = 3
TERM_GRACE = 5.0  # seconds between the polite and the hard end
STDERR_LINES = 40


@dataclass(frozen=True)
class EngineStage:
    """How far an engine is. `fraction` is in 0..1 while loading; the addresses are there when it is ready.

    `aside` is a sentence on what is not there yet, or no more, beside a ready engine: its baseline, say.
    """

    name: Literal["loading", "ready", "failed"]
    message: str
    fraction: float | None = None
    eagle_url: str | None = None
    baseline_url: str | None = None
    aside: str = ""


Prepare = Callable[[Callable[[EngineStage], None]], Sequence[str]]


class EngineProcess(Protocol):
    """An engine that this app started: how far it is, and its end."""

    @property
    def stage(self) -> EngineStage:
        """The latest stage."""
        ...

    def start(self) -> None:
        """Begin; returns at once."""
        ...

    def wait_for_change(self, seen: EngineStage, timeout: float) -> EngineStage:
        """The stage once it differs from `seen`, or after `timeout` seconds."""
        ...

    def stop(self) -> None:
        """End it; returns when nothing of it is left."""
        ...


class EmbeddedProcess:
    """Runs `python -m backend.embedded` and follows the stages that it prints as JSON lines.

    The child holds the read end of a pipe whose other end is ours: when this process dies, however it dies,
    the pipe closes and the child ends itself. `prepare` runs before the first start, in the background: it tells
    how far it is, returns further arguments, and raises RuntimeError with a sentence for a person.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        command: Sequence[str] | None = None,
        prepare: Prepare = lambda _report: (),
    ) -> None:
        self._command = [*(command or (sys.executable, "-u", "-m", "backend.embedded")), *arguments]
        self._prepare = prepare
        self._lock = threading.Lock()
        self._stage = EngineStage("loading", "Starting the engine")
        self._changed = threading.Condition(self._lock)
        self._child: subprocess.Popen[str] | None = None
        self._stopping = False
        self._watcher = threading.Thread(target=self._watch, name="embedded-engine", daemon=True)

    @property
    def stage(self) -> EngineStage:
        """The latest stage."""
        with self._lock:
            return self._stage

    @property
    def pid(self) -> int | None:
        """The child's process id, None while there is none."""
        with self._lock:
            return self._child.pid if self._child else None

    def start(self) -> None:
        """Start the child and the thread that watches it."""
        self._watcher.start()

    def wait_for_change(self, seen: EngineStage, timeout: float) -> EngineStage:
        """The stage once it differs from `seen`, or after `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._stage != seen, timeout)
            return self._stage

    def stop(self) -> None:
        """End the child and wait until it is gone."""
        with self._lock:
            self._stopping = True
            child = self._child
        if child is not None:
            _end(child)
        if self._watcher.is_alive():
            self._watcher.join(TERM_GRACE)

    def _set(self, stage: EngineStage) -> None:
        with self._changed:
            self._stage = stage
            self._changed.notify_all()

    def _watch(self) -> None:
        try:
            self._command += self._prepare(self._set)
        except RuntimeError as error:
            self._set(EngineStage("failed", str(error)))
            return
        restarts = 0
        while True:
            was_ready, said = self._run_once()
            if self._stopping:
                return
            if self.stage.name == "failed" and not was_ready:
                return
            if restarts == RESTARTS:
                self._set(EngineStage("failed", f"The engine stopped {restarts + 1} times. Last words: {said}"))
                return
            restarts += 1
            self._set(EngineStage("loading", f"The engine stopped and is being started again. Last words: {said}"))

    def _run_once(self) -> tuple[bool, str]:
        """Run the child until it ends: (it was ready, its last words)."""
        try:
            child = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C in the terminal is for us; we then end the child
            )
        except OSError as error:
            self._set(EngineStage("failed", f"The engine could not be started: {error}"))
            return False, str(error)
        with self._lock:
            self._child = child
            stopping = self._stopping
        if stopping:
            _end(child)
        words: deque[str] = deque(maxlen=STDERR_LINES)
        listener = threading.Thread(target=_collect, args=(child, words), daemon=True)
        listener.start()
        was_ready = self._follow_stages(child)
        code = child.wait()
        listener.join(1.0)
        said = words[-1] if words else f"exit code {code}"
        if not was_ready and self.stage.name != "failed":
            self._set(EngineStage("failed", f"The engine ended before it was ready. Last words: {said}"))
        return was_ready, said

    def _follow_stages(self, child: subprocess.Popen[str]) -> bool:
        was_ready = False
        for line in child.stdout or ():
            stage = read_stage(line)
            if stage is not None:
                self._set(stage)
                was_ready = was_ready or stage.name == "ready"
        return was_ready


def report_stages(process: EngineProcess, say: Callable[[str], None]) -> None:
    """Tell `say` of every new stage, for as long as this process lives."""
    seen = process.stage
    said = ""
    while True:
        line = describe_stage(seen)
        if line != said:
            say(line)
            said = line
        seen = process.wait_for_change(seen, timeout=3600.0)


def describe_stage(stage: EngineStage) -> str:
    """A stage as one line; progress in tenths, so that a terminal is not flooded."""
    if stage.name == "loading" and stage.fraction is not None:
        return f"Engine: {stage.message} {int(stage.fraction * 10) * 10} %"
    return " ".join(part for part in (f"Engine: {stage.message}", stage.aside) if part)


def read_stage(line: str) -> EngineStage | None:
    """One line of the child's output as a stage; None where it is something else."""
    try:
        said = json.loads(line)
    except ValueError:
        return None
    if not isinstance(said, dict) or "stage" not in said:
        return None
    match said["stage"]:
        case "ready":
            urls = said.get("eagle_url"), said.get("baseline_url")
            return EngineStage("ready", "Ready", 1.0, *urls)
        case "error":
            return EngineStage("failed", str(said.get("message", "The engine could not start.")))
        case name:
            return EngineStage("loading", str(said.get("message") or name), said.get("fraction"))


def _collect(child: subprocess.Popen[str], words: deque[str]) -> None:
    for line in child.stderr or ():
        if line.strip():
            words.append(line.strip())


def _end(child: subprocess.Popen[str]) -> None:
    if child.stdin is not None:
        child.stdin.close()
    child.terminate()
    try:
        child.wait(TERM_GRACE)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
