"""A recording gives back exactly what was saved, and a file that is none says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend import recording
from backend.errors import RecordingError
from backend.events import (
    Chunk,
    Counters,
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
from backend.recording import (
    Recording,
    collect_words,
    dump_recording,
    load_recording,
    parse_recording,
    replay_events,
    save_recording,
)

TIMES = st.floats(0, 1e6, allow_nan=False)
IDS = st.lists(st.integers(0, 200_000), max_size=4).map(tuple)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
COUNTS = st.integers(0, 10_000)
MAYBE = st.none() | COUNTS
FACTS = st.dictionaries(TEXTS, st.none() | st.booleans() | COUNTS | TEXTS | st.lists(COUNTS, max_size=2), max_size=3)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    chunks = draw(st.lists(st.builds(Chunk, TIMES, IDS, TEXTS, st.none() | IDS), max_size=5))
    ids = [token for chunk in chunks for token in chunk.ids]
    sources = st.sampled_from(list(Source))
    tokens = [
        Token(index, token, draw(TEXTS), draw(sources), draw(MAYBE), draw(MAYBE), draw(TIMES))
        for index, token in enumerate(ids)
    ]
    sampling = st.builds(Sampling, TIMES, TIMES, COUNTS, MAYBE, st.booleans(), IDS, MAYBE)
    counters = st.builds(
        Counters,
        MAYBE,
        MAYBE,
        MAYBE,
        COUNTS,
        COUNTS,
        MAYBE,
        COUNTS,
        st.none() | IDS,
        st.none() | TIMES,
        st.none() | TIMES,
    )
    return Run(
        lane=draw(TEXTS),
        request=Request(draw(TEXTS), draw(IDS), draw(sampling), draw(st.none() | TEXTS)),
        started_at=draw(TIMES),
        chunks=tuple(chunks),
        tokens=tuple(tokens),
        counters=draw(st.none() | counters),
        exactness=draw(st.sampled_from(list(Exactness))),
        num_steps=draw(COUNTS),
        finish_reason=draw(st.none() | st.sampled_from(["stop", "length", "abort"])),
        error=draw(st.none() | TEXTS),
        server=draw(FACTS),
    )


WORDS = st.dictionaries(st.integers(0, 200_000), TEXTS, max_size=3)
RECORDINGS = st.builds(Recording, TEXTS, TIMES, TEXTS, st.lists(runs(), min_size=1, max_size=2).map(tuple), WORDS)


def make_run() -> Run:
    request = Request("r1", (7, 8, 9), Sampling(max_tokens=3))
    chunks = (Chunk(0.25, (10,), " w10"), Chunk(0.5, (11, 12), " w11 w12", (11, 13, 14)), Chunk(0.5, (), ""))
    tokens = (
        Token(0, 10, " w10", Source.FIRST, 0, 0, 0.25),
        Token(1, 11, " w11", Source.DRAFT, 1, 0, 0.5),
        Token(2, 12, " w12", Source.TARGET, 1, 1, 0.5),
    )
    counters = Counters(1, 1, 3, 3, 3, histogram=(0, 1, 0, 0), accept_rate=1 / 3, accept_length=3.0)
    return Run(
        "EAGLE-3", request, 1.8e9, chunks, tokens, counters, Exactness.EXACT, 3, "length", server={"version": "1"}
    )


def make_recording() -> Recording:
    return Recording("Sea", 1.8e9, "0.1.0", (make_run(), replace(make_run(), lane="Baseline")))


def change(edit: Callable[[Any], object]) -> bytes:
    document = json.loads(dump_recording(make_recording()))
    edit(document)
    return json.dumps(document).replace("Infinity", "1e999").encode()


@settings(max_examples=80, deadline=None)
@given(RECORDINGS)
def test_what_is_saved_is_loaded_exactly(saved: Recording) -> None:
    assert parse_recording(dump_recording(saved).encode()) == saved


def test_a_recording_without_words_is_read() -> None:
    assert parse_recording(change(lambda d: d.pop("words"))) == make_recording()


def test_words_are_those_of_the_drafted_tokens_that_the_vocabulary_knows() -> None:
    assert collect_words([make_run()], ["x"] * 13 + [" w13"]) == {11: "x", 13: " w13"}


def test_a_file_is_loaded_exactly(tmp_path: Path) -> None:
    path = tmp_path / "sea.json"
    save_recording(make_recording(), path)
    save_recording(make_recording(), path)
    assert load_recording(path) == make_recording()
    assert [found.name for found in tmp_path.iterdir()] == ["sea.json"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"format": "eaglelens-recording", "title": "\\uD800"}', "not valid JSON"),
        (b'{"format": NaN}', "not valid JSON"),
        (b"[1, 2]", "not an EagleLens recording"),
        (b'{"log": {"version": "1.2"}}', "not an EagleLens recording"),
        (b'{"format": "eaglelens-recording", "version": 2}', "newer"),
        (b'{"format": "eaglelens-recording"}', "no format version"),
        (b'{"format": "eaglelens-recording", "version": 1}', "'runs' is missing"),
    ],
)
def test_a_file_that_is_no_recording_says_why(content: bytes, said: str) -> None:
    with pytest.raises(RecordingError, match=said):
        parse_recording(content)


@pytest.mark.parametrize(
    "edit",
    [
        lambda d: d.update(runs=[]),
        lambda d: d.update(runs=d["runs"] * 2),
        lambda d: d.update(title=3),
        lambda d: d["runs"][0].pop("chunks"),
        lambda d: d["runs"][0].update(exactness="sure"),
        lambda d: d["runs"][0].update(num_steps=True),
        lambda d: d["runs"][0]["tokens"].pop(),
        lambda d: d["runs"][0]["tokens"][1].pop(),
        lambda d: d["runs"][0]["tokens"][1].__setitem__(2, "guess"),
        lambda d: d["runs"][0]["chunks"][0].__setitem__(0, "soon"),
        lambda d: d["runs"][0].update(started_at=1e308 * 10),
        lambda d: d["runs"][0]["counters"].update(accepted="many"),
        lambda d: d["runs"][0]["counters"].pop("histogram"),
        lambda d: d["runs"][0]["request"]["sampling"].update(stop_token_ids=["<eos>"]),
        lambda d: d["runs"].__setitem__(0, None),
        lambda d: d.update(words=["a"]),
        lambda d: d.update(words={"ten": "a"}),
        lambda d: d.update(words={"10": 3}),
    ],
)
def test_a_recording_with_a_broken_part_is_refused(edit: Callable[[Any], object]) -> None:
    with pytest.raises(RecordingError, match="broken"):
        parse_recording(change(edit))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_file_is_refused_or_read_but_never_crashes(data: st.DataObject) -> None:
    content = bytearray(dump_recording(make_recording()).encode())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=4))
    try:
        parse_recording(bytes(content))
    except RecordingError as error:
        assert str(error)


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(recording.MAX_BYTES + 1)
    with pytest.raises(RecordingError, match="at most 67 MB"):
        load_recording(path)


def test_a_missing_file_and_a_missing_folder_are_said_plainly(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="cannot be read"):
        load_recording(tmp_path / "none.json")
    with pytest.raises(RecordingError, match="cannot be written"):
        save_recording(make_recording(), tmp_path / "none" / "sea.json")


def test_three_runs_are_not_a_recording() -> None:
    with pytest.raises(RecordingError, match="one or two"):
        dump_recording(replace(make_recording(), runs=(make_run(),) * 3))


def test_a_run_is_replayed_at_the_times_its_chunks_arrived() -> None:
    run = make_run()
    events = replay_events(run)
    assert [time for time, _ in events] == [0.0, 0.25, 0.5, 0.5]
    assert isinstance(events[0][1], RunStarted)
    arrived = [event for _, event in events if isinstance(event, TokensArrived)]
    assert tuple(token for event in arrived for token in event.tokens) == run.tokens
    assert events[-1][1] == RunEnded(run)
