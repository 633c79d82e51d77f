"""A baseline measured before, where there is no baseline server: dated in the chat, refused where it does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest

from backend.client import read_lane, tokenize_chat
from backend.embedded_process import EngineStage
from backend.events import Chunk, Exactness, Request, Run, Sampling, Source, Token
from backend.kept_baselines import KeptBaselines
from backend.sglang.baseline_turn import TurnState
from tests.chunk_server import ChunkServer, Script
from ui.backend_baseline import list_questions, render_kept
from ui.chat_run import ChatSettings, write_reply
from ui.compare_run import FAIR, CompareSettings, find_dated
from ui.conversation import to_messages
from ui.engines import Engines
from ui.live_runs import LiveRuns
from ui.presets import load_presets

MOMENT = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
SCRIPT = Script.from_steps([0, 3, 0, 3], 3)


def make_run(ids: tuple[int, ...] = (1, 2, 3), sampling: Sampling | None = None, model: str = "chunks") -> Run:
    """Eleven tokens, ten a second."""
    tokens = tuple(Token(at, at, "x", Source.TARGET, at, 0, 0.5 + at / 10) for at in range(11))
    return Run(
        lane="Baseline",
        request=Request(uuid4().hex, ids, sampling or Sampling()),
        started_at=MOMENT.timestamp(),
        chunks=tuple(Chunk(token.arrived, (token.id,), token.piece) for token in tokens),
        tokens=tokens,
        counters=None,
        exactness=Exactness.EXACT,
        num_steps=0,
        finish_reason="length",
        server={"model_path": model},
    )


@pytest.fixture
def server() -> Iterator[ChunkServer]:
    with ChunkServer(SCRIPT) as one:
        yield one


@pytest.mark.parametrize(("model", "speed"), [("chunks", 10.0), ("another", None)])
async def test_the_chat_shows_the_newest_dated_baseline_of_its_own_model(
    server: ChunkServer, tmp_path: Path, model: str, speed: float | None
) -> None:
    kept = KeptBaselines(tmp_path)
    kept.keep("Hello", make_run(model=model))
    stage = EngineStage("ready", "Attached", 1.0, server.url, None)
    engines = Engines(lambda: stage, kept=kept)
    settings = ChatSettings(
        mode="Chat",
        system="",
        temperature=0,
        top_p=1,
        max_tokens=64,
        thinking="the model's default",
        run_baseline=False,
        view="Tokens",
    )
    updates = [update async for update in write_reply("Hi", (), settings, engines, LiveRuns(), None)]
    shown = updates[-1].reference
    if speed is None:
        assert shown is None
    else:
        assert shown is not None
        assert shown.decode_speed == pytest.approx(speed)
        assert shown.line().measured == "2 Jan 03:04 UTC"


async def test_what_is_measured_for_a_preset_is_what_compare_asks_for_it(server: ChunkServer, tmp_path: Path) -> None:
    preset = load_presets()[0]
    (question,) = list_questions([preset.name], "Chat", "")
    lane = await read_lane(server.url, "EAGLE-3")
    kept = KeptBaselines(tmp_path)
    kept.keep(question.title, make_run(await tokenize_chat(lane, question.messages), question.sampling))
    system = question.messages[0]["content"]
    settings = CompareSettings(preset.mode, FAIR, 1, preset.max_tokens, 0.0, 1.0, str(system), False, False)
    assert question.messages == [dict(message) for message in to_messages(str(system), (), preset.prompt)]
    found = await find_dated(kept, lane, preset.prompt, settings)
    assert found is not None and found.lane == "Baseline of 2 Jan 2026 03:04 UTC"


def test_a_prompt_of_ones_own_comes_last_and_an_empty_one_not_at_all() -> None:
    names = [preset.name for preset in load_presets()]
    assert [question.title for question in list_questions(names[::-1], "Maths", "  ")] == names
    (own,) = list_questions([], "Maths", " 1 + 1? ")
    assert own.title == "1 + 1?" and "1 + 1?" in str(own.messages[-1]["content"])


def test_the_list_tells_date_prompt_and_speed_and_escapes_them(tmp_path: Path) -> None:
    kept = KeptBaselines(tmp_path)
    kept.keep("<b>Hello</b>", make_run())
    shown = render_kept(TurnState("failed", "No <room>."), kept.list_newest(9))
    assert "2026-01-02 03:04 UTC" in shown and "10.0" in shown
    assert "&lt;b&gt;Hello" in shown and "<b>Hello" not in shown and "No &lt;room&gt;." in shown
    assert render_kept(TurnState(), ()) == ""
