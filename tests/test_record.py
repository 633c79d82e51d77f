"""The example recordings: made by one command from a running pair, and shipped whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.bench.record import EXAMPLES, load_examples, main
from backend.embedded.server import EmbeddedServer, bind_port
from backend.events import Exactness
from backend.playback import ran_at_once
from backend.recording import load_recording
from tests.closed_form_engine import ClosedFormEngine
from ui.replay_tab import list_examples

HOST = "127.0.0.1"


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(ClosedFormEngine(), bind_port(HOST, 0), bind_port(HOST, 0))
    server.start()
    yield server
    server.stop()


def test_a_running_pair_is_recorded_one_lane_after_the_other(server: EmbeddedServer, tmp_path: Path) -> None:
    urls = ["--eagle-url", server.eagle.url, "--baseline-url", server.baseline.url]
    assert main(["--presets", "A poem", "--folder", str(tmp_path), *urls]) == 0
    recording = load_recording(tmp_path / "a-poem.json")
    drafted, plain = recording.runs
    assert [token.id for token in drafted.tokens] == [token.id for token in plain.tokens]
    assert drafted.exactness is Exactness.EXACT
    assert not ran_at_once(recording.runs)
    assert not any(run.counters.cached_tokens for run in recording.runs if run.counters)
    proposed = {token for chunk in drafted.chunks for token in chunk.proposed or ()}
    assert proposed
    assert set(recording.words) == proposed
    assert "hardware" in plain.server


def test_an_unknown_preset_is_named_beside_those_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--presets", "A sonnet", "--folder", str(tmp_path)]) == 1
    assert "no preset 'A sonnet'. Choose from: Sum in steps" in capsys.readouterr().err


def test_a_server_that_is_away_is_said_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    away = [f"http://{HOST}:9"] * 2
    assert main(["--folder", str(tmp_path), "--eagle-url", away[0], "--baseline-url", away[1]]) == 1
    assert "EAGLE-3" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_shipped_recordings_are_exact_and_both_lanes_agree() -> None:
    shipped = [load_recording(path) for path in list_examples().values()]
    assert [recording.title.partition(":")[0] for recording in shipped] == list(EXAMPLES)
    for recording in shipped:
        drafted, plain = recording.runs
        assert [run.exactness for run in recording.runs] == [Exactness.EXACT] * 2
        assert [token.id for token in drafted.tokens] == [token.id for token in plain.tokens]
        assert any(chunk.proposed for chunk in drafted.chunks)
        assert drafted.request.prompt_ids == plain.request.prompt_ids


def test_every_example_is_a_preset() -> None:
    assert [example.name for example in load_examples(EXAMPLES)] == list(EXAMPLES)
