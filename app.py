"""EagleLens: watch EAGLE-3 speculative decoding as it happens. `python app.py --help` lists the options."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Sequence

from backend.embedded_pair import fetch_embedded_pair, plan_embedded_pair
from backend.embedded_process import EmbeddedProcess, EngineProcess, EngineStage, report_stages
from backend.hub import Hub
from backend.ports import NoFreePortError
from backend.sglang.environment import setup_sglang
from backend.sglang.launch_plan import plan_launch
from backend.sglang.pair_launch import PairLaunch
from ui.engines import Engines
from ui.launch import serve_page
from ui.options import SETUP_SGLANG, describe_pairs, list_embedded_options, read_options, read_wish
from ui.page import build_page
from ui.share import ShareLink

EXIT_REFUSED = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until interrupted; returns the exit status: 0 ended, 1 could not start, 2 wrong options."""
    options = read_options(sys.argv[1:] if arguments is None else arguments)
    if options.list_pairs:
        say(describe_pairs())
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if options.command == SETUP_SGLANG:
            found = setup_sglang(on_line=say)
            say(f"SGLang {found.version} is ready: start a pair with --pair NAME.")
            return 0
        process = make_engine(options)
    except KeyboardInterrupt:
        say("Stopping.")
        return 0
    except (LookupError, ValueError, RuntimeError, OSError, NoFreePortError) as error:
        say(str(error))
        return EXIT_REFUSED
    return serve(options, process)


def make_engine(options: argparse.Namespace) -> EngineProcess | None:
    """The engine to start, None where servers run already.

    Raises what `plan_launch` and `plan_embedded_pair` raise.
    """
    if options.engine == "attached":
        return None
    hub = Hub()
    if options.engine == "embedded":
        pair = plan_embedded_pair(options.target, options.draft, hub)
        return EmbeddedProcess(
            list_embedded_options(options), prepare=lambda report: fetch_embedded_pair(pair, hub, report)
        )
    return PairLaunch(plan_launch(read_wish(options), hub, say), hub)


def serve(options: argparse.Namespace, process: EngineProcess | None) -> int:
    """Start the engine, open the page, and end both when interrupted."""
    attached = EngineStage("ready", "Attached", 1.0, options.eagle_url, options.baseline_url)
    launch = process if isinstance(process, PairLaunch) else None
    api_key = options.api_key if launch is None else launch.plan.api_key
    engines = Engines(lambda: attached if process is None else process.stage, api_key, options.ca_file)
    share = ShareLink(say)
    try:
        if process is not None:
            process.start()
            threading.Thread(target=report_stages, args=(process, say), name="engine-report", daemon=True).start()
        page = build_page(engines, share.state, launch)
        serve_page(page, share, options.host, options.port, options.share, not options.no_browser, say)
        threading.Event().wait()
    except KeyboardInterrupt:
        say("Stopping.")
    except NoFreePortError as error:
        say(str(error))
        return EXIT_REFUSED
    finally:
        if process is not None:
            process.stop()
    return 0


def say(text: str) -> None:
    """One line for the person at the terminal."""
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
