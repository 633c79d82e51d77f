"""Runs as a file: save, load, and play again.

A recording is one JSON object, UTF-8, at most MAX_BYTES long:

    format       "eaglelens-recording"
    version      1; a reader refuses a higher one
    title        what the person called it
    created      Unix time, seconds
    app_version  of the EagleLens that wrote it
    words        {id: text} of the drafted tokens whose text was known; files without it are read too
    runs         one or two runs, each:
      lane, started_at, num_steps, exactness, finish_reason, error   as in `backend.events.Run`
      request    rid, prompt_ids, sampling (as in `Sampling`), cache_salt
      server     the facts of /server_info that were shown
      counters   as in `Counters`, or null
      chunks     [arrived, ids, text, proposed or null] in order of arrival; seconds after sending
      tokens     [id, piece, source, step or null, place or null, arrived] by index

Times are floats as measured, so loading gives back exactly what was saved.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from math import isfinite
from pathlib import Path
from time import time
from types import NoneType
from typing import Any, TypeVar, cast

from backend.errors import RecordingError
from backend.events import (
    Chunk,
    Counters,
    Event,
    Exactness,
    Request,
    Run,
    RunEnded,
    RunStarted,
    Sampling,
    Source,
    Token,
    TokensArrived,
)

FORMAT = "eaglelens-recording"
VERSION = 1
MAX_BYTES = 64 * 1024 * 1024
MAX_RUNS = 2
TITLE_CHARACTERS = 80

_T = TypeVar("_T")


@dataclass(frozen=True)
class Recording:
    """One or two runs of the same prompt, with what is needed to show them later. `created` is Unix time.

    `words[id]` is the text of a drafted token: a rejected one is in no reply, so nothing else tells it.
    """

    title: str
    created: float
    app_version: str
    runs: tuple[Run, ...]
    words: Mapping[int, str] = field(default_factory=dict)


def collect_words(runs: Iterable[Run], vocabulary: Sequence[str] | Mapping[int, str]) -> dict[int, str]:
    """The texts of what was drafted in `runs`, by id, out of a lane's `vocabulary`; those it does not know left out."""
    known = vocabulary if isinstance(vocabulary, Mapping) else dict(enumerate(vocabulary))
    drafted = {token for run in runs for chunk in run.chunks for token in chunk.proposed or ()}
    return {token: known[token] for token in sorted(drafted) if token in known}


def make_recording(title: str, runs: Sequence[Run], vocabulary: Sequence[str] | Mapping[int, str]) -> Recording:
    """A recording of now, by this EagleLens; a long title is shortened. `vocabulary` is as in `collect_words`."""
    line = " ".join(title.split())
    short = line if len(line) <= TITLE_CHARACTERS else f"{line[: TITLE_CHARACTERS - 1].rstrip()}…"
    return Recording(short, time(), _read_app_version(), tuple(runs), collect_words(runs, vocabulary))


def save_recording(recording: Recording, path: Path) -> None:
    """Write the file whole or not at all. Raises RecordingError."""
    text = dump_recording(recording)
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, suffix=".part", delete=False) as file:
            file.write(text)
        os.replace(file.name, path)
    except OSError as error:
        raise RecordingError(f"{path.name} cannot be written ({error.strerror}). Choose another folder.") from error


def load_recording(path: Path) -> Recording:
    """Read a file. Raises RecordingError, also for a file that is too large, before reading it."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise _too_large(path.stat().st_size)
        return parse_recording(path.read_bytes())
    except OSError as error:
        raise RecordingError(f"{path.name} cannot be read ({error.strerror}). Choose another file.") from error


def dump_recording(recording: Recording) -> str:
    """The file's text. Raises RecordingError for what the format cannot hold."""
    if not 1 <= len(recording.runs) <= MAX_RUNS:
        raise RecordingError(f"A recording holds one or two runs, not {len(recording.runs)}.")
    document = {
        "format": FORMAT,
        "version": VERSION,
        "title": recording.title,
        "created": recording.created,
        "app_version": recording.app_version,
        "words": {str(token): text for token, text in recording.words.items()},
        "runs": [_dump_run(run) for run in recording.runs],
    }
    return json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def parse_recording(content: bytes) -> Recording:
    """Read a file's content. Raises RecordingError: broken, foreign, newer or huge."""
    if len(content) > MAX_BYTES:
        raise _too_large(len(content))
    try:
        document = json.loads(content.decode("utf-8"), parse_constant=_refuse_constant)
        _refuse_half_characters(content, document)
    except (ValueError, RecursionError) as error:
        raise RecordingError("This file is broken or no recording: it is not valid JSON. Save it again.") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise RecordingError("This file is not an EagleLens recording. Choose one saved by EagleLens.")
    version = document.get("version")
    if isinstance(version, int) and version > VERSION:
        raise RecordingError(f"This recording is of format {version}, newer than this EagleLens. Update EagleLens.")
    if version != VERSION:
        raise RecordingError("This recording has no format version that EagleLens knows. Save it again.")
    try:
        return _read_document(document)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise RecordingError(f"This recording is broken: {_name_fault(error)}. Save it again.") from error


def replay_events(run: Run) -> tuple[tuple[float, Event], ...]:
    """The events of a finished run with their times, in seconds after sending: to play it again at true pace.

    Labels and pieces are the final ones.
    """
    events: list[tuple[float, Event]] = [(0.0, RunStarted(run.lane, run.request, run.started_at, run.num_steps))]
    index = 0
    for chunk in run.chunks:
        tokens = run.tokens[index : index + len(chunk.ids)]
        if tokens:
            events.append((chunk.arrived, TokensArrived(index, tokens, chunk)))
        index += len(tokens)
    end = run.chunks[-1].arrived if run.chunks else 0.0
    return (*events, (end, RunEnded(run)))


def _read_app_version() -> str:
    try:
        return version("eaglelens")
    except PackageNotFoundError:
        return "from source"


def _dump_run(run: Run) -> dict[str, object]:
    return {
        "lane": run.lane,
        "started_at": run.started_at,
        "num_steps": run.num_steps,
        "exactness": run.exactness.value,
        "finish_reason": run.finish_reason,
        "error": run.error,
        "request": asdict(run.request),
        "server": dict(run.server),
        "counters": None if run.counters is None else asdict(run.counters),
        "chunks": [[chunk.arrived, chunk.ids, chunk.text, chunk.proposed] for chunk in run.chunks],
        "tokens": [[t.id, t.piece, t.source.value, t.step, t.place, t.arrived] for t in run.tokens],
    }


def _read_document(document: Mapping[str, Any]) -> Recording:
    runs = _take(document, "runs", list)
    if not 1 <= len(runs) <= MAX_RUNS:
        raise ValueError(f"it holds {len(runs)} runs")
    return Recording(
        title=_take(document, "title", str),
        created=float(_take(document, "created", int, float)),
        app_version=_take(document, "app_version", str),
        runs=tuple(_read_run(run) for run in runs),
        words=_read_words(_check(document.get("words", {}), "words", dict)),
    )


def _read_words(data: Mapping[str, Any]) -> dict[int, str]:
    return {int(token): _check(text, "a word", str) for token, text in data.items()}


def _read_run(data: Mapping[str, Any]) -> Run:
    counters = _take(data, "counters", dict, NoneType)
    chunks = tuple(_read_chunk(row) for row in _take(data, "chunks", list))
    tokens = tuple(_read_token(index, row) for index, row in enumerate(_take(data, "tokens", list)))
    if [token.id for token in tokens] != [token for chunk in chunks for token in chunk.ids]:
        raise ValueError("its tokens are not those of its chunks")
    return Run(
        lane=_take(data, "lane", str),
        request=_read_request(_take(data, "request", dict)),
        started_at=_take(data, "started_at", int, float),
        chunks=chunks,
        tokens=tokens,
        counters=None if counters is None else _read_counters(counters),
        exactness=Exactness(data["exactness"]),
        num_steps=_take(data, "num_steps", int),
        finish_reason=_take(data, "finish_reason", str, NoneType),
        error=_take(data, "error", str, NoneType),
        server=_take(data, "server", dict),
    )


def _read_request(data: Mapping[str, Any]) -> Request:
    sampling = _take(data, "sampling", dict)
    return Request(
        rid=_take(data, "rid", str),
        prompt_ids=_read_ids(_take(data, "prompt_ids", list)),
        sampling=Sampling(
            temperature=_take(sampling, "temperature", int, float),
            top_p=_take(sampling, "top_p", int, float),
            max_tokens=_take(sampling, "max_tokens", int),
            seed=_take(sampling, "seed", int, NoneType),
            ignore_eos=_take(sampling, "ignore_eos", bool),
            stop_token_ids=_read_ids(_take(sampling, "stop_token_ids", list)),
            num_steps=_take(sampling, "num_steps", int, NoneType),
        ),
        cache_salt=_take(data, "cache_salt", str, NoneType),
    )


def _read_counters(data: Mapping[str, Any]) -> Counters:
    values = {field.name: data[field.name] for field in fields(Counters)}
    histogram = _take(data, "histogram", list, NoneType)
    for name in ("verify_steps", "accepted", "proposed", "cached_tokens"):
        _take(data, name, int, NoneType)
    for name in ("completion_tokens", "prompt_tokens", "retractions"):
        _take(data, name, int)
    for name in ("accept_rate", "accept_length"):
        _take(data, name, int, float, NoneType)
    return Counters(**{**values, "histogram": None if histogram is None else _read_ids(histogram)})


def _read_chunk(row: Sequence[Any]) -> Chunk:
    arrived, ids, text, proposed = row
    return Chunk(
        arrived=_check(arrived, "an arrival time", int, float),
        ids=_read_ids(_check(ids, "the ids of a chunk", list)),
        text=_check(text, "the text of a chunk", str),
        proposed=None if proposed is None else _read_ids(_check(proposed, "proposed ids", list)),
    )


def _read_token(index: int, row: Sequence[Any]) -> Token:
    token, piece, source, step, place, arrived = row
    return Token(
        index=index,
        id=_check(token, "a token id", int),
        piece=_check(piece, "a piece", str),
        source=Source(source),
        step=_check(step, "a step", int, NoneType),
        place=_check(place, "a place", int, NoneType),
        arrived=_check(arrived, "an arrival time", int, float),
    )


def _read_ids(values: Iterable[object]) -> tuple[int, ...]:
    return tuple(cast(int, _check(value, "an id", int)) for value in values)


def _take(data: Mapping[str, Any], name: str, *kinds: type) -> Any:
    return _check(data[name], name, *kinds)


def _check(value: _T, name: str, *kinds: type) -> _T:
    """`value` if it is of one of `kinds`; true and false are no numbers, nor is what is too large for one."""
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise TypeError(f"{name} is {type(value).__name__}")
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{name} is too large")
    return value


def _name_fault(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _refuse_half_characters(content: bytes, document: object) -> None:
    """JSON can spell half a surrogate pair, which no page and no file can take."""
    if b"\\ud" in content.lower():
        json.dumps(document, ensure_ascii=False).encode("utf-8")


def _too_large(size: int) -> RecordingError:
    return RecordingError(
        f"This file has {size / 1e6:,.0f} MB; recordings have at most {MAX_BYTES / 1e6:,.0f} MB. Choose another file."
    )
