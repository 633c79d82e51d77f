"""A stand-in for `python -m sglang.launch_server`, to force what a real server does seldom: crashes, silence.

Run as an executable. It plays the script in EAGLELENS_STANDIN, a list of steps separated by `;`:
`say TEXT`, `wait SECONDS`, `exit STATUS`, `serve`, `child` (starts a process that outlives it unless ended),
`deaf` (ignores a polite end), `speak EAGLE|BASELINE` (SGLang's protocol, as tests/chunk_server.py has it).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

UP = "say Load weight begin; say Application startup complete; say The server is fired up and ready to roll!"
READY = f"{UP}; serve"


class Answer(BaseHTTPRequestHandler):
    """Answers 200 to every GET."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Keep the log to what the script says."""


def play(step: str) -> None:
    """Do one step of the script."""
    word, _, rest = step.strip().partition(" ")
    if word == "say":
        print(rest, flush=True)
    elif word == "wait":
        time.sleep(float(rest))
    elif word == "exit":
        sys.exit(int(rest))
    elif word == "child":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print(f"child {child.pid}", flush=True)
    elif word == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif word == "serve":
        HTTPServer(("127.0.0.1", read_port()), Answer).serve_forever()
    elif word == "speak":
        speak(rest)


def read_port() -> int:
    """The port to serve at, as SGLang is told it."""
    return int(sys.argv[sys.argv.index("--port") + 1])


def speak(lane: str) -> None:
    """Serve replies of 21 tokens for as long as this process lives: a lane with drafts, or one without."""
    sys.path.insert(0, str(Path(__file__).parents[1]))  # it runs as a file
    from tests.chunk_server import ChunkServer, Script  # noqa: PLC0415 - needs the path above

    drafting = lane == "EAGLE"
    script = Script.from_steps([0, 3] * 4, 3, interval=0.01) if drafting else Script.plain(21, interval=0.02)
    with ChunkServer(script, num_steps=3 if drafting else 0, port=read_port()):
        signal.pause()


if __name__ == "__main__":
    for one in os.environ["EAGLELENS_STANDIN"].split(";"):
        play(one)
