"""A recording as a file to download."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import time

from backend.events import Run
from backend.recording import Recording, save_recording

TITLE_CHARACTERS = 80


def write_recording(prompt: str, runs: Sequence[Run], folder: Path) -> Path:
    """Write one or two runs to a new file somewhere under `folder`; its path. Raises RecordingError."""
    created = time()
    title = " ".join(prompt.split())[:TITLE_CHARACTERS]
    path = Path(tempfile.mkdtemp(dir=folder)) / f"eaglelens-{datetime.fromtimestamp(created, UTC):%Y%m%d-%H%M%S}.json"
    save_recording(Recording(title, created, _app_version(), tuple(runs)), path)
    return path


def _app_version() -> str:
    try:
        return version("eaglelens")
    except PackageNotFoundError:
        return "from source"
