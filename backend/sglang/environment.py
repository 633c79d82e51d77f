"""The Python that has SGLang: found, asked for its version, or made for it alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

NEWEST = "0.5.23"
SUPPORTED_PYTHONS = ((3, 11), (3, 12), (3, 13))  # of the 0.5.23 wheel
NEEDED_BYTES = 15 * 1000**3  # SGLang with its CUDA libraries, rounded up
ASK_VERSION = "import importlib.metadata as m; print(m.version('sglang'))"


class NoSglangError(RuntimeError):
    """There is no usable SGLang; the message says how to get one."""


@dataclass(frozen=True)
class SglangPython:
    """An interpreter and the version of its SGLang."""

    python: Path
    version: str


def own_environment() -> Path:
    """Where `setup-sglang` puts SGLang, apart from this app because its pins are hard."""
    return user_cache_path("eaglelens") / "sglang"


def find_sglang(chosen: Path | None = None, environment: Path | None = None) -> SglangPython:
    """The chosen interpreter, else the environment of `setup-sglang`, else this one; asked for its version.

    Raises NoSglangError where none has SGLang, and where the chosen one does not: it is never passed over.
    """
    if chosen is not None:
        found = _ask(chosen)
        if found is None:
            raise NoSglangError(f"{chosen} has no SGLang: check --sglang-python, or install SGLang there.")
        return found
    own = _python_of(environment or own_environment())
    for python in (own, Path(sys.executable)):
        found = _ask(python)
        if found is not None:
            return found
    raise NoSglangError(
        "There is no SGLang here. Run `python app.py setup-sglang` to install it in an environment of its own, or "
        "point --sglang-python at an interpreter that has it."
    )


def setup_sglang(
    environment: Path | None = None, version: str = NEWEST, on_line: Callable[[str], None] = print
) -> SglangPython:
    """Install SGLang in an environment of its own; `on_line` gets the installer's output as it comes.

    Running it again updates to `version`. Raises NoSglangError when it cannot be done, with the remedy.
    """
    folder = environment or own_environment()
    if sys.version_info[:2] not in SUPPORTED_PYTHONS:
        raise NoSglangError("SGLang 0.5.23 needs Python 3.11, 3.12 or 3.13: run setup-sglang with one of them.")
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < NEEDED_BYTES:
        raise NoSglangError(
            f"SGLang with its CUDA libraries takes about {NEEDED_BYTES / 1e9:.0f} GB and {folder} has "
            f"{free / 1e9:.0f} GB free: make room first."
        )
    _run([sys.executable, "-m", "venv", str(folder)], on_line)
    _run([str(_python_of(folder)), "-m", "pip", "install", "--progress-bar", "off", f"sglang=={version}"], on_line)
    found = _ask(_python_of(folder))
    if found is None:
        raise NoSglangError(f"SGLang was installed in {folder} but cannot be found there: remove the folder and retry.")
    return found


def _run(command: list[str], on_line: Callable[[str], None]) -> None:
    last = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            last = line.strip() or last
            on_line(line.rstrip())
    if process.returncode != 0:
        raise NoSglangError(f"Installing SGLang failed: {last} Run setup-sglang again once that is solved.")


def _ask(python: Path) -> SglangPython | None:
    try:
        answer = subprocess.run(
            [str(python), "-c", ASK_VERSION], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return SglangPython(python, answer.stdout.strip()) if answer.returncode == 0 else None


def _python_of(environment: Path) -> Path:
    return environment / "bin" / "python"
