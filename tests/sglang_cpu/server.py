"""Start a real SGLang server on the CPU and stop it, process group and all, also when the tests are killed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from backend.sglang import warden
from tests.sglang_cpu.setup import interpreter

SHIM = Path(__file__).parent / "shim"
GRACE = "0.5"  # seconds for a polite stop
READY_WITHIN = 240.0  # seconds; about 20 on a quiet machine
COMMON = (
    *("--device", "cpu", "--disable-cuda-graph"),
    "--sleep-on-idle",  # an idle scheduler otherwise spins on a core that the tests need
    *("--max-total-tokens", "4096", "--max-running-requests", "4", "--mem-fraction-static", "0.3"),
)
# `--attention-backend intel_amx` as one flag is rewritten by SGLang and then refused.
SPECULATIVE = (
    *("--prefill-attention-backend", "intel_amx", "--decode-attention-backend", "intel_amx"),
    *("--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "3"),
    *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"),
)
PLAIN = ("--attention-backend", "torch_native")


@dataclass(frozen=True)
class Server:
    """A running server: where it answers, the warden that ends it with us, its log."""

    base_url: str
    warden: subprocess.Popen[bytes]
    log: Path


def environment_variables() -> dict[str, str]:
    """What SGLang needs around it here: the test kernels, one thread, no compilation, no network."""
    return {
        **os.environ,
        "PYTHONPATH": str(SHIM),
        "SGLANG_USE_CPU_ENGINE": "1",
        "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",  # else the first request can stall for 40 s
        "HF_HUB_OFFLINE": "1",
    }


def cpu_flags(draft: Path | None) -> tuple[str, ...]:
    """The flags that make SGLang serve on a CPU, with EAGLE-3 (3 steps, a chain) when there is a draft."""
    if draft is None:
        return (*COMMON, *PLAIN)
    return (*COMMON, *SPECULATIVE, "--speculative-draft-model-path", str(draft))


def start_server(target: Path, draft: Path | None, dtype: str, flags: Sequence[str], log: Path) -> Server:
    """Start a server on a free port and wait until it serves. Raises AssertionError with the log's end if not.

    In fp32 greedy replies with and without a draft are the same; in bfloat16 they drift apart after a while.
    """
    port = free_port()
    command = [
        *(sys.executable, "-I", warden.__file__, GRACE),
        *(str(interpreter()), "-m", "sglang.launch_server"),
        *("--model-path", str(target), "--dtype", dtype, "--host", "127.0.0.1", "--port", str(port)),
        *cpu_flags(draft),
        *flags,
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment_variables(),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=output,
            start_new_session=True,
        )
    server = Server(f"http://127.0.0.1:{port}", process, log)
    try:
        _wait_until_ready(server)
    except BaseException:
        stop_server(server)
        raise
    return server


def stop_server(server: Server) -> None:
    """End the server's whole process group; there is nothing to save, so force follows soon."""
    if server.warden.stdin is not None:
        server.warden.stdin.close()
    server.warden.wait(15)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _wait_until_ready(server: Server) -> None:
    deadline = time.monotonic() + READY_WITHIN
    while time.monotonic() < deadline:
        if server.warden.poll() is not None:
            raise AssertionError(f"SGLang ended while starting. {_end_of(server.log)}")
        try:
            if httpx.get(f"{server.base_url}/ready", timeout=5).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass  # not listening yet
        time.sleep(0.5)
    raise AssertionError(f"SGLang was not ready within {READY_WITHIN:.0f} s. {_end_of(server.log)}")


def _end_of(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join([f"The end of {log}:", *lines[-40:]])
