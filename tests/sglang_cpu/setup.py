"""Install SGLang for the tests: `python -m tests.sglang_cpu.setup`.

Needs nothing but a Python that SGLang supports, with pip and venv. The environment (2.3 GB) goes where
`environment()` says; running it again costs nothing. Packages come from whatever pip is configured to use; where
that offers a CUDA torch first, point pip at a CPU build (for instance with PIP_EXTRA_INDEX_URL).
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements.txt"
ALONE = HERE / "requirements-alone.txt"
SUPPORTED = ((3, 11), (3, 12), (3, 13))


def environment() -> Path:
    """Folder of the virtual environment: EAGLELENS_SGLANG_VENV, or one in the user's cache."""
    chosen = os.environ.get("EAGLELENS_SGLANG_VENV")
    return Path(chosen) if chosen else Path.home() / ".cache" / "eaglelens-tests" / "sglang-cpu"


def interpreter() -> Path:
    """The environment's Python; it may not exist yet."""
    return environment() / "bin" / "python"


def is_installed() -> bool:
    """Whether the environment can serve: ours and complete, or one that the tester pointed at."""
    if os.environ.get("EAGLELENS_SGLANG_VENV"):
        return interpreter().exists()
    return interpreter().exists() and _marker().exists() and _marker().read_text() == _fingerprint()


def install() -> None:
    """Make the environment unless it is there. Raises CalledProcessError when pip fails, having shown why."""
    if is_installed():
        print(f"SGLang for the tests is already in {environment()}")
        return
    if sys.version_info[:2] not in SUPPORTED:
        raise SystemExit("SGLang 0.5.23 needs Python 3.11, 3.12 or 3.13: run this with one of them.")
    subprocess.run([sys.executable, "-m", "venv", str(environment())], check=True)
    pip = [str(interpreter()), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--requirement", str(REQUIREMENTS)], check=True)
    subprocess.run([*pip, "--no-deps", "--requirement", str(ALONE)], check=True)
    _marker().write_text(_fingerprint())
    print(f"SGLang for the tests is in {environment()}")


def _marker() -> Path:
    return environment() / "eaglelens-installed"


def _fingerprint() -> str:
    return hashlib.sha256(REQUIREMENTS.read_bytes() + ALONE.read_bytes()).hexdigest()


if __name__ == "__main__":
    install()
