"""Dated baselines: runs measured while the baseline had the GPUs, kept for when it has not."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path, PurePosixPath

from platformdirs import user_data_path

from backend.comparison import hash_prompt
from backend.errors import RecordingError
from backend.events import Request, Run
from backend.lanes import Lane
from backend.recording import Recording, load_recording, make_recording, save_recording

LOG = logging.getLogger(__name__)
SEARCHED = 32  # recordings read for one of a model, the newest first


class KeptBaselines:
    """The dated baselines in a folder, each a recording of one run, named by its time and its prompt's hash."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder` may not exist yet; by default it lies in the user's data directory."""
        self.folder = folder or user_data_path("eaglelens") / "baselines"

    def keep(self, title: str, run: Run, vocabulary: Sequence[str] = ()) -> Path:
        """Write one run as a recording; the ones before stay. Raises RecordingError."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RecordingError(f"{self.folder} cannot be made ({error.strerror}). Make room for it.") from error
        moment = datetime.fromtimestamp(run.started_at, UTC)
        path = self.folder / f"baseline-{moment:%Y%m%d-%H%M%S-%f}-{hash_prompt(run.request.prompt_ids)}.json"
        save_recording(make_recording(title, (run,), vocabulary), path)
        return path

    def find(self, lane: Lane, request: Request) -> Run | None:
        """The newest baseline of `lane`'s model for the same prompt ids and sampling; None where none is kept."""
        runs = (recording.runs[0] for recording in self._load(f"baseline-*-{hash_prompt(request.prompt_ids)}.json"))
        return next((run for run in runs if _is_of(run, lane) and _is_asked(run, request)), None)

    def list_newest(self, count: int) -> tuple[Recording, ...]:
        """The newest ones, newest first."""
        return tuple(islice(self._load("baseline-*.json"), count))

    def find_newest(self, lane: Lane) -> Run | None:
        """The newest baseline of `lane`'s model, whatever its prompt; None without one."""
        runs = (recording.runs[0] for recording in self.list_newest(SEARCHED))
        return next((run for run in runs if _is_of(run, lane)), None)

    def _load(self, pattern: str) -> Iterator[Recording]:
        """The recordings of these names, newest first; one that cannot be read is told in the log and left out."""
        for path in sorted(self.folder.glob(pattern), reverse=True):
            try:
                yield load_recording(path)
            except RecordingError as error:
                LOG.warning("%s is left out. %s", path, error)


def _is_of(run: Run, lane: Lane) -> bool:
    told = (run.server.get("model_path"), lane.facts.get("model_path"))
    return all(told) and _last_part(told[0]) == _last_part(told[1])


def _last_part(path: object) -> str:
    """The same model may lie in different folders."""
    return PurePosixPath(str(path).rstrip("/")).name


def _is_asked(run: Run, request: Request) -> bool:
    """Whether the prompt and the way of drawing are the same; a draft length says nothing of a baseline."""
    asked = replace(request.sampling, num_steps=run.request.sampling.num_steps)
    return run.request.prompt_ids == request.prompt_ids and run.request.sampling == asked
