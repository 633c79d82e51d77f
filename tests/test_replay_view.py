"""What the replay of a recording claims: figures of the recorded runs, and no comparison that is none."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from backend.errors import RecordingError
from backend.events import Sampling
from backend.metrics import decode_speed
from backend.recording import Recording
from tests.recordings import make_pair, name_pieces, only_drafted
from ui.numbers import DASH
from ui.replay_view import Replay, show_recording

PAIR = make_pair(name_pieces(8), [2, 3])


def show(recording: Recording) -> Replay:
    return show_recording(recording, "name", ("left", "right"))


def number(replay: Replay, key: str) -> str:
    return next(one.value for one in replay.numbers if one.key == key)


def with_second(recording: Recording, **changes: object) -> Recording:
    first, second = recording.runs
    return replace(recording, runs=(first, replace(second, **changes)))  # type: ignore[arg-type]


def test_the_numbers_are_those_of_the_recorded_times() -> None:
    replay = show(PAIR)
    left, right = (decode_speed(run.tokens) or 0 for run in PAIR.runs)
    assert number(replay, "left-speed") == f"{left:.1f}"
    assert number(replay, "speedup") == f"{left / right:.2f}×"  # noqa: RUF001
    assert number(replay, "outputs") == "same"
    assert "one lane after the other" in replay.report.sentences[0]


def test_runs_at_the_same_time_keep_no_speedup() -> None:
    replay = show(with_second(PAIR, started_at=PAIR.runs[0].started_at))
    assert number(replay, "speedup") == DASH
    assert "a show" in replay.report.headline


def test_runs_of_different_prompts_are_not_compared() -> None:
    request = replace(PAIR.runs[1].request, sampling=Sampling(temperature=1.0))
    replay = show(with_second(PAIR, request=request))
    assert number(replay, "speedup") == DASH
    assert any("cannot be compared" in warning for warning in replay.report.warnings)


def test_one_run_is_shown_without_a_comparison() -> None:
    replay = show(only_drafted(PAIR))
    assert len(replay.panels) == 1
    assert number(replay, "tau") == "3.50"
    assert "speedup" not in [one.key for one in replay.numbers]


def test_the_player_is_told_every_step_at_its_recorded_time() -> None:
    player = json.loads(show(PAIR).player)
    assert [step["seconds"] for step in player["lanes"][0]["steps"]] == [0.1, 0.2, 0.3]
    assert [len(lane["steps"]) for lane in player["lanes"]] == [3, 8]
    assert player["seconds"] == 0.8
    assert player["chart"]["series"][0]["y"][-1] == 8


def test_a_recording_without_a_token_is_refused_in_words() -> None:
    run = replace(PAIR.runs[0], chunks=(), tokens=())
    with pytest.raises(RecordingError, match="holds no token"):
        show(replace(PAIR, runs=(run,)))


def test_a_run_beside_an_empty_one_is_shown() -> None:
    replay = show(with_second(PAIR, chunks=(), tokens=(), error="The server went away. Start it again."))
    assert any("went away" in warning for warning in replay.report.warnings)
    assert json.loads(replay.player)["seconds"] == 0.3
