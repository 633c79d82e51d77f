"""Dated baselines: found for the same model, prompt and sampling, the newest first, and for nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backend.errors import RecordingError
from backend.events import Chunk, Exactness, Request, Run, Sampling, Source, Token
from backend.kept_baselines import KeptBaselines
from backend.lanes import Lane

LANE = Lane("EAGLE-3", "http://host", "chain", num_steps=3, facts={"model_path": "/models/chain"})
REQUEST = Request("r", (1, 2, 3), Sampling(max_tokens=8))


def make_run(started_at: float = 1_750_000_000.0, request: Request = REQUEST, model: str = "other/chain") -> Run:
    return Run(
        lane="Baseline",
        request=request,
        started_at=started_at,
        chunks=(Chunk(0.1, (5,), "a"),),
        tokens=(Token(0, 5, "a", Source.FIRST, 0, 0, 0.1),),
        counters=None,
        exactness=Exactness.EXACT,
        num_steps=0,
        finish_reason="length",
        server={"model_path": model},
    )


@pytest.fixture
def kept(tmp_path: Path) -> KeptBaselines:
    return KeptBaselines(tmp_path / "baselines")


def test_without_any_there_is_none(kept: KeptBaselines) -> None:
    assert kept.find(LANE, REQUEST) is None
    assert kept.find_newest(LANE) is None


def test_the_newest_of_the_same_prompt_is_found_and_the_older_one_stays(kept: KeptBaselines) -> None:
    older, newer = make_run(), make_run(1_750_000_100.0)
    kept.keep("Hello", newer)
    kept.keep("Hello", older)
    assert kept.find(LANE, replace(REQUEST, rid="another")) == newer
    assert [recording.runs[0] for recording in kept.list_newest(9)] == [newer, older]


def test_a_draft_length_says_nothing_of_a_baseline(kept: KeptBaselines) -> None:
    run = make_run()
    kept.keep("Hello", run)
    assert kept.find(LANE, replace(REQUEST, sampling=replace(REQUEST.sampling, num_steps=2))) == run


@pytest.mark.parametrize(
    "request_",
    [
        replace(REQUEST, prompt_ids=(1, 2, 4)),
        replace(REQUEST, sampling=Sampling(max_tokens=9)),
        replace(REQUEST, sampling=Sampling(temperature=0.5, max_tokens=8)),
    ],
)
def test_another_prompt_or_sampling_is_not_compared_with(kept: KeptBaselines, request_: Request) -> None:
    run = make_run()
    kept.keep("Hello", run)
    assert kept.find(LANE, request_) is None
    assert kept.find_newest(LANE) == run


def test_another_model_is_not_compared_with(kept: KeptBaselines) -> None:
    kept.keep("Hello", make_run(model="other/chain-large"))
    assert kept.find(LANE, REQUEST) is None
    assert kept.find_newest(LANE) is None


def test_a_server_that_does_not_tell_its_model_has_no_dated_baseline(kept: KeptBaselines) -> None:
    kept.keep("Hello", make_run())
    assert kept.find(replace(LANE, facts={}), REQUEST) is None


def test_a_broken_file_is_told_and_does_not_hide_the_others(
    kept: KeptBaselines, caplog: pytest.LogCaptureFixture
) -> None:
    run = make_run()
    kept.keep("Hello", run)
    broken = kept.keep("Hello", make_run(1_750_000_100.0))
    broken.write_text("{", encoding="utf-8")
    assert kept.find(LANE, REQUEST) == run
    assert broken.name in caplog.text


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordingError, match="cannot be made"):
        KeptBaselines(tmp_path / "file" / "baselines").keep("Hello", make_run())
