"""A recording as a file to download."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from backend.events import Run
from backend.recording import make_recording, save_recording
from ui.token_stream import Vocabulary


def write_recording(prompt: str, runs: Sequence[Run], vocabulary: Vocabulary, folder: Path) -> Path:
    """Write one or two runs to a new file somewhere under `folder`; its path. Raises RecordingError.

    `vocabulary` tells the text of a drafted token.
    """
    recording = make_recording(prompt, runs, vocabulary)
    name = f"eaglelens-{datetime.fromtimestamp(recording.created, UTC):%Y%m%d-%H%M%S}.json"
    path = Path(tempfile.mkdtemp(dir=folder)) / name
    save_recording(recording, path)
    return path
