"""A recording as a file to download."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from backend.events import Run
from backend.lanes import Lane
from backend.recording import make_recording, save_recording


def write_recording(prompt: str, runs: Sequence[Run], lanes: Sequence[Lane], folder: Path) -> Path:
    """Write the runs of one or two lanes to a new file somewhere under `folder`; its path. Raises RecordingError."""
    vocabulary = max((lane.vocabulary for lane in lanes), key=len, default=())
    recording = make_recording(prompt, runs, vocabulary)
    name = f"eaglelens-{datetime.fromtimestamp(recording.created, UTC):%Y%m%d-%H%M%S}.json"
    path = Path(tempfile.mkdtemp(dir=folder)) / name
    save_recording(recording, path)
    return path
