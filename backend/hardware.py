"""What this machine computes with, in words, so that a number can be read beside it."""

from __future__ import annotations

import platform
import shutil
import subprocess
from functools import cache
from pathlib import Path

import psutil

PROBE_TIMEOUT = 5.0  # seconds


@cache
def describe_hardware() -> str:
    """Processor, cores, memory, and the GPUs where there are any, the cores counted by the system."""
    cores = psutil.cpu_count(logical=True) or 1
    memory = psutil.virtual_memory().total / 1e9
    return "; ".join((f"{cores} × {_read_processor()}, {memory:.0f} GB", *_list_gpus()))  # noqa: RUF001


def _read_processor() -> str:
    facts = Path("/proc/cpuinfo")
    if facts.is_file():
        for line in facts.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name" and value.strip():
                return value.strip()
    return platform.processor() or platform.machine()


def _list_gpus() -> tuple[str, ...]:
    probe = shutil.which("nvidia-smi")
    if probe is None:
        return ()
    query = [probe, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=PROBE_TIMEOUT, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()  # a driver that does not answer has no GPU to tell of
    return tuple(line.strip() for line in told.stdout.splitlines() if line.strip())
