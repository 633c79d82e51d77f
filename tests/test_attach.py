"""Attaching to servers of others, over real sockets: keys, certificates, routers that drop things, old versions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backend.chat_prompt import render_prompt
from backend.client import read_lane, stream_run, tokenize_chat
from backend.errors import LaneError
from backend.events import Exactness, Request, Run, RunEnded, Sampling, TokensArrived
from backend.lanes import Lane
from backend.recording import dump_recording, make_recording
from tests.attached import make_certificate, write_template
from tests.chunk_server import ChunkServer, Script
from ui.backend_view import LaneReport, render_report, show_launch
from ui.engines import EngineState
from ui.options import read_options
from ui.status import ShareState, render_banner, render_head

SCRIPT = Script.from_steps([0, 3, 0, 3], 3, cut=1)
REQUEST = Request("r1", (7, 8, 9), Sampling(max_tokens=20))
HELLO = [{"role": "user", "content": "Hello"}]
HIDDEN = frozenset({"/server_info", "/get_server_info"})
CAPTURES = Path(__file__).parent / "captures"


async def complete(lane: Lane) -> tuple[Run, str]:
    """The run, and the sources of its tokens as they were shown while they came."""
    live = ""
    async for event in stream_run(lane, REQUEST):
        if isinstance(event, TokensArrived):
            live += "".join(token.source.value[0] for token in event.tokens)
        if isinstance(event, RunEnded):
            return event.run, live
    raise AssertionError("the run did not end")


def letters(run: Run) -> str:
    return "".join(token.source.value[0] for token in run.tokens)


async def test_over_tls_with_a_key_a_reply_is_exact_and_the_key_is_shown_nowhere(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    told = {
        "launch_command": "python -m sglang.launch_server --model-path chunks --api-key s3cret",
        "api_key": "s3cret",
    }
    with ChunkServer(SCRIPT, tls=certificate.server, api_key="s3cret", facts=told) as server:
        lane = await read_lane(server.url, "EAGLE-3", api_key="s3cret", ca_file=str(certificate.bundle))
        assert await tokenize_chat(lane, HELLO) == (1, 2, 3)
        run, _ = await complete(lane)
    assert (run.error, run.exactness, letters(run)) == (None, Exactness.EXACT, "ftdddttddd")
    state = EngineState(lane)
    report = LaneReport("EAGLE-3", lane)
    shown = (render_head(state, ShareState()), render_banner(state, ShareState()), render_report(report))
    for text in (*shown, show_launch(report), repr(lane), dump_recording(make_recording("Hello", (run,), ()))):
        assert "s3cret" not in text
    assert show_launch(report).endswith("--api-key ***")


async def test_a_certificate_that_nobody_vouches_for_is_told_with_the_remedy(tmp_path: Path) -> None:
    with (
        ChunkServer(SCRIPT, tls=make_certificate(tmp_path).server) as server,
        pytest.raises(LaneError, match="Name its certificate file"),
    ):
        await read_lane(server.url, "EAGLE-3")


async def test_a_wrong_key_is_one_clear_sentence(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    with ChunkServer(SCRIPT, tls=certificate.server, api_key="s3cret") as server, pytest.raises(LaneError) as refused:
        await read_lane(server.url, "EAGLE-3", api_key="wr0ng", ca_file=str(certificate.bundle))
    assert str(refused.value) == "EAGLE-3 refused the key (401). Give the API key that it was started with."


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_certificate_file_that_is_none_is_refused_before_anything_starts(
    tmp_path: Path, content: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bundle.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SystemExit):
        read_options(["--eagle-url", "https://127.0.0.1:1", "--ca-file", str(path)])
    assert "no certificate bundle in PEM form" in capsys.readouterr().err


async def test_behind_a_router_that_passes_counters_the_labels_are_exact_at_the_end() -> None:
    with ChunkServer(SCRIPT, missing=HIDDEN) as server:
        lane = await read_lane(server.url, "EAGLE-3")
        run, live = await complete(lane)
    assert (run.exactness, letters(run), run.num_steps) == (Exactness.EXACT, "ftdddttddd", 3)
    assert live == "fuuuuuuuuu"


async def test_behind_a_router_that_drops_counters_and_ids_nothing_but_the_first_token_is_claimed() -> None:
    with ChunkServer(replace(SCRIPT, spec=None, with_ids=False), missing=HIDDEN) as server:
        lane = await read_lane(server.url, "EAGLE-3")
        run, live = await complete(lane)
    assert (run.exactness, letters(run)) == (Exactness.PARTIAL, "fuuuuuuuuu")
    assert live == letters(run)
    assert run.text == "".join(f" w{index}" for index in range(10, 20))
    state = EngineState(lane)
    assert "does not tell whether it speculates" in render_banner(state, ShareState())
    assert "does not speculate" not in render_banner(state, ShareState())
    assert "speculation unknown" in render_head(state, ShareState())
    assert "not told" in render_report(LaneReport("EAGLE-3", lane))


async def test_a_router_that_drops_only_counters_leaves_the_target_of_each_chunk_certain() -> None:
    with ChunkServer(replace(SCRIPT, spec=None)) as server:
        run, _ = await complete(await read_lane(server.url, "EAGLE-3"))
    assert (run.exactness, letters(run)) == (Exactness.PARTIAL, "ftuuuttuuu")


async def test_counters_of_a_baseline_behind_a_router_say_that_it_does_not_speculate() -> None:
    script = replace(Script.plain(4), spec={"spec_verify_ct": 0})
    with ChunkServer(script, num_steps=0, missing=HIDDEN) as server:
        run, _ = await complete(await read_lane(server.url, "Baseline"))
    assert (run.exactness, letters(run)) == (Exactness.EXACT, "fttt")


async def test_the_wire_of_0_5_6_is_coloured_exactly() -> None:
    """The stream is written after the source of SGLang 0.5.6: cumulative text and ids, totals in the last meta_info."""
    recorded = (CAPTURES / "written_0_5_6.generate.sse").read_bytes()
    with ChunkServer(SCRIPT, version="0.5.6", recorded=recorded, facts={"stream_output": False}) as server:
        lane = await read_lane(server.url, "EAGLE-3")
        run, _ = await complete(lane)
        assert server.asked("/v1/completions") == []
    assert any("older /generate" in warning for warning in lane.warnings)
    assert (run.error, run.exactness, letters(run)) == (None, Exactness.EXACT, "ftdddttdddttdd")
    assert run.counters is not None
    assert (run.counters.verify_steps, run.counters.accepted, run.counters.proposed) == (6, 9, 18)
    assert run.counters.histogram is None
    assert run.text == "".join(f" w{index}" for index in range(10, 24))


async def test_a_merged_chunk_on_the_wire_of_0_5_6_is_claimed_only_in_part() -> None:
    recorded = (CAPTURES / "written_0_5_6_merged.generate.sse").read_bytes()
    with ChunkServer(SCRIPT, version="0.5.6", recorded=recorded) as server:
        run, _ = await complete(await read_lane(server.url, "EAGLE-3"))
    assert (run.exactness, letters(run)) == (Exactness.PARTIAL, "ftuuuutdddttdd")


async def test_0_5_6_gets_its_prompt_by_the_template_of_its_model(tmp_path: Path) -> None:
    facts = {"model_path": str(write_template(tmp_path / "model"))}
    with ChunkServer(SCRIPT, version="0.5.6", facts=facts) as server:
        lane = await read_lane(server.url, "EAGLE-3")
        assert await tokenize_chat(lane, HELLO) == (1, 2, 3)
        asked = server.asked("/tokenize")[-1]
    assert asked == {"model": "chunks", "prompt": "<s>[user] Hello[answer] ", "add_special_tokens": False}
    assert render_prompt(facts["model_path"], HELLO, {}) == asked["prompt"]


async def test_0_5_6_without_a_readable_template_says_what_is_missing(tmp_path: Path) -> None:
    facts = {"model_path": str(tmp_path / "nowhere")}
    with ChunkServer(SCRIPT, version="0.5.6", facts=facts) as server:
        lane = await read_lane(server.url, "EAGLE-3")
        with pytest.raises(LaneError, match=r"SGLang 0\.5\.6, which applies no chat template"):
            await tokenize_chat(lane, HELLO)
