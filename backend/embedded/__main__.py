"""`python -m backend.embedded`: the embedded server as a process of its own.

Its stdout carries one JSON object a line, for the program that started it:
`{"stage": "loading", "message": "Reading the weights", "fraction": 0.4}`, then
`{"stage": "ready", "eagle_url": ..., "baseline_url": ...}`, or `{"stage": "error", "message": ...}`. Logs go to stderr.
It ends on SIGINT and SIGTERM, and, where its stdin is a pipe, when that closes: so it never outlives its parent.
Exit status: 0 stopped, 2 wrong options, 3 port in use, 4 the engine could not be loaded.
"""

from __future__ import annotations

import _thread
import argparse
import json
import logging
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from backend.embedded.engine_protocol import Engine
from backend.embedded.scheduler import Limits
from backend.embedded.server import EmbeddedServer, PortInUseError, bind_port

EXIT_PORT_IN_USE = 3
EXIT_ENGINE_FAILED = 4
DEFAULT_PORT = 30000
WATCH_SECONDS = 0.5

log = logging.getLogger("backend.embedded")

Progress = Callable[[str, float], None]
LoadEngine = Callable[[argparse.Namespace, Progress], Engine]


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line. Exits with status 2 where it is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m backend.embedded",
        description="A small EAGLE-3 engine for any CPU, at two addresses that speak SGLang's protocol.",
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=int, default=DEFAULT_PORT, help="EAGLE-3 address (default: %(default)s; 0: any free port)")
    add("--baseline-port", type=int, default=None, help="same weights without the draft (default: the port after)")
    add("--target", type=Path, help="target weights (default: the cached ones, downloaded once)")
    add("--draft", type=Path, help="EAGLE-3 draft (default: the one that ships with EagleLens)")
    add("--dtype", help="w8a8, int4, int8, bf16 or fp32 (default: the fastest here, measured)")
    add("--device", help="where the model computes, as torch names it: cuda, mps, ... (default: cpu)")
    add("--threads", type=int, help="threads for the model (default: the best here, measured)")
    add("--num-steps", type=int, help="drafts per verify step (default: the fastest here, measured)")
    add("--max-running", type=int, default=Limits().max_running, help="requests served in turn (default: %(default)s)")
    add("--max-queued", type=int, default=Limits().max_queued, help="requests that may wait (default: %(default)s)")
    add("--log-level", default="warning", choices=("debug", "info", "warning", "error"))
    options = parser.parse_args(arguments)
    if options.baseline_port is None:
        options.baseline_port = options.port + 1 if options.port else 0
    for name, least in (("port", 0), ("baseline_port", 0), ("max_running", 1), ("max_queued", 0)):
        if getattr(options, name) < least:
            parser.error(f"--{name.replace('_', '-')} must be at least {least}")
    if options.port and options.port == options.baseline_port:
        parser.error("--port and --baseline-port must differ")
    return options


def load_engine(options: argparse.Namespace, progress: Progress) -> Engine:
    """The real engine. Its packages are imported here, so that wrong options and taken ports are told at once."""
    from backend.embedded.loading import load_engine as load  # noqa: PLC0415

    return load(
        target=options.target,
        draft=options.draft,
        dtype=options.dtype,
        threads=options.threads,
        num_steps=options.num_steps,
        device=options.device,
        progress=progress,
    )


def run(options: argparse.Namespace, load: LoadEngine) -> int:
    """Serves until told to stop, and returns the exit status."""
    try:
        eagle = bind_port(options.host, options.port)
        baseline = bind_port(options.host, options.baseline_port)
    except PortInUseError as error:
        report("error", message=str(error))
        return EXIT_PORT_IN_USE
    try:
        engine = load(options, report_progress)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        log.debug("The engine could not be loaded", exc_info=True)
        report("error", message=str(error))
        return EXIT_ENGINE_FAILED
    server = EmbeddedServer(engine, eagle, baseline, limits=Limits(options.max_running, options.max_queued))
    try:
        server.start()
        report("ready", eagle_url=server.eagle.url, baseline_url=server.baseline.url)
        while server.is_alive:
            time.sleep(WATCH_SECONDS)
        report("error", message="The embedded server stopped unexpectedly; its log says why.")
        return EXIT_ENGINE_FAILED
    except OSError as error:
        report("error", message=str(error))
        return EXIT_PORT_IN_USE
    finally:
        server.stop()


def report(stage: str, **facts: object) -> None:
    """One line for the program that started this one."""
    print(json.dumps({"stage": stage, **facts}), flush=True)


def report_progress(message: str, fraction: float) -> None:
    """How far loading is; `fraction` in 0..1."""
    report("loading", message=message, fraction=round(fraction, 3))


def stop_with_parent() -> None:
    """Interrupts this process when its stdin, if that is a pipe, is closed from the other end."""
    try:
        is_pipe = stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode)
    except (AttributeError, OSError, ValueError):  # no stdin at all
        return
    if is_pipe:
        threading.Thread(target=_interrupt_at_end_of_stdin, name="parent", daemon=True).start()


def _interrupt_at_end_of_stdin() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        continue
    _thread.interrupt_main()


def main(arguments: Sequence[str], load: LoadEngine = load_engine) -> int:
    """The whole program; returns the exit status."""
    options = parse_options(arguments)
    logging.basicConfig(level=options.log_level.upper(), format="%(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    stop_with_parent()
    try:
        return run(options, load)
    except (KeyboardInterrupt, BrokenPipeError):
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
