"""EagleLens: watch EAGLE-3 speculative decoding as it happens. `python app.py --help` lists the options."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Callable, Sequence

from backend.embedded_process import EmbeddedProcess, EngineStage, report_stages
from backend.ports import NoFreePortError
from ui.engines import Engines
from ui.launch import serve_page
from ui.page import build_page
from ui.share import ShareLink


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line as options."""
    parser = argparse.ArgumentParser(prog="app.py", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (0.0.0.0: every interface)")
    parser.add_argument("--port", type=int, default=7860, help="port of the page; the next free one is taken if in use")
    parser.add_argument("--share", action="store_true", help="also ask for a public Gradio link")
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")
    attach = parser.add_argument_group("attach to running servers instead of starting the embedded engine")
    attach.add_argument("--eagle-url", help="a server with EAGLE-3, such as http://127.0.0.1:30000")
    attach.add_argument("--baseline-url", help="the same target on a server without speculation")
    embedded = parser.add_argument_group("embedded engine")
    embedded.add_argument(
        "--engine-port", type=int, default=0, help="port of its EAGLE-3 address (default: a free one)"
    )
    embedded.add_argument("--engine-baseline-port", type=int, default=0, help="port of its baseline address")
    embedded.add_argument("engine_options", nargs="*", metavar="-- ENGINE OPTIONS", help="passed to the engine as is")
    options = parser.parse_args(arguments)
    if options.baseline_url and not options.eagle_url:
        parser.error("--baseline-url needs --eagle-url beside it")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until interrupted; returns the exit status."""
    options = read_options(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    process = None if options.eagle_url else start_engine(options)
    stage = attached_stage(options) if process is None else (lambda: process.stage)
    share = ShareLink(say)
    try:
        page = build_page(Engines(stage), share.state)
        serve_page(page, share, options.host, options.port, options.share, not options.no_browser, say)
        threading.Event().wait()
    except KeyboardInterrupt:
        say("Stopping.")
    except NoFreePortError as error:
        say(str(error))
        return 1
    finally:
        if process is not None:
            process.stop()
    return 0


def start_engine(options: argparse.Namespace) -> EmbeddedProcess:
    """Start the embedded engine and report its progress in the terminal."""
    ports = ["--port", str(options.engine_port), "--baseline-port", str(options.engine_baseline_port)]
    process = EmbeddedProcess([*ports, *options.engine_options])
    process.start()
    threading.Thread(target=report_stages, args=(process, say), name="engine-report", daemon=True).start()
    return process


def attached_stage(options: argparse.Namespace) -> Callable[[], EngineStage]:
    """Servers that run already need no loading here."""
    stage = EngineStage("ready", "Attached", 1.0, options.eagle_url, options.baseline_url)
    return lambda: stage


def say(text: str) -> None:
    """One line for the person at the terminal."""
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
