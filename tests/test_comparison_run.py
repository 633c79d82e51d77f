"""A comparison carried out over real sockets: who runs when, what is kept out of it, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from backend.client import read_lane
from backend.events import Exactness, Request, Run, Sampling
from backend.kept_baselines import KeptBaselines
from backend.lanes import Lane
from tests.chunk_server import ChunkServer, Script
from ui.compare_run import FAIR, RACE, CompareSettings, Comparison, Comparisons, Phase, find_dated, find_refusal
from ui.dated_baseline import make_dated_lane, say_dated_order
from ui.live_runs import LiveRuns
from ui.panel import stream_panel
from ui.token_stream import StreamView

EAGLE_SCRIPT = Script.from_steps([0, 3] * 4, 3, interval=0.01)
PLAIN_SCRIPT = Script.plain(sum(EAGLE_SCRIPT.sizes), interval=0.01)
SETTINGS = CompareSettings("Chat", FAIR, 1, 64, 0.0, 1.0, "", False, False)


@dataclass(frozen=True)
class Pair:
    """Two servers that do what their scripts say."""

    eagle: ChunkServer
    baseline: ChunkServer

    async def lanes(self) -> tuple[Lane, Lane]:
        return await read_lane(self.eagle.url, "EAGLE-3"), await read_lane(self.baseline.url, "Baseline")


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(
            stack.enter_context(ChunkServer(EAGLE_SCRIPT)),
            stack.enter_context(ChunkServer(PLAIN_SCRIPT, num_steps=0)),
        )


async def begin(pair: Pair, live_runs: LiveRuns | None = None, **changes: Any) -> Comparison:
    settings = replace(SETTINGS, **changes)
    return Comparisons().begin(await pair.lanes(), "Hello", settings, live_runs or LiveRuns())


async def carry_out(pair: Pair, **changes: Any) -> Comparison:
    comparison = await begin(pair, **changes)
    await comparison.run(asyncio.Lock())
    return comparison


@asynccontextmanager
async def started(comparison: Comparison) -> AsyncIterator[asyncio.Task[None]]:
    """The comparison under way; ended on the way out."""
    task = asyncio.create_task(comparison.run(asyncio.Lock()))
    yield task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def end_of(run: Run) -> float:
    return run.started_at + run.tokens[-1].arrived


async def test_fair_runs_never_overlap_and_their_order_alternates(pair: Pair) -> None:
    comparison = await carry_out(pair, trials=3)
    assert comparison.phase is Phase.DONE, comparison.problem
    runs = sorted((run for trial in comparison.trials for run in (trial.left, trial.right)), key=lambda r: r.started_at)
    for earlier, later in pairwise(runs):
        assert later.started_at >= end_of(earlier)
    order = [run.lane for run in runs]
    assert order == ["EAGLE-3", "Baseline", "Baseline", "EAGLE-3", "EAGLE-3", "Baseline"]


async def test_both_lanes_get_the_same_prompt_ids_limits_and_sampling(pair: Pair) -> None:
    comparison = await carry_out(pair, temperature=0.5, max_tokens=40)
    (trial,) = comparison.trials
    assert trial.left.request.prompt_ids == trial.right.request.prompt_ids == (1, 2, 3)
    assert trial.left.request.sampling == trial.right.request.sampling
    asked = [server.asked("/v1/completions")[-1] for server in (pair.eagle, pair.baseline)]
    for name in ("prompt", "max_tokens", "temperature", "top_p"):
        assert asked[0][name] == asked[1][name]


async def test_the_warm_up_is_short_comes_first_and_is_not_counted(pair: Pair) -> None:
    comparison = await carry_out(pair)
    for server in (pair.eagle, pair.baseline):
        warm, timed = server.asked("/v1/completions")
        assert warm["max_tokens"] < timed["max_tokens"]
    rids = {server.asked("/v1/completions")[0]["rid"] for server in (pair.eagle, pair.baseline)}
    assert len(comparison.trials) == 1
    assert not rids & {comparison.trials[0].left.request.rid, comparison.trials[0].right.request.rid}


async def test_attached_servers_are_not_flushed_and_each_run_has_a_salt_of_its_own(pair: Pair) -> None:
    await carry_out(pair, trials=2)
    salts = []
    for server in (pair.eagle, pair.baseline):
        assert server.asked("/flush_cache") == []
        salts += [body["cache_salt"] for body in server.asked("/v1/completions")[1:]]
    assert len(set(salts)) == 4


async def test_attached_servers_are_flushed_before_each_run_where_that_was_asked_for(pair: Pair) -> None:
    await carry_out(pair, trials=2, flush=True)
    for server in (pair.eagle, pair.baseline):
        wanted = ("/flush_cache", "/v1/completions")
        asked = [path for path, _ in server.requests if path in wanted]
        assert asked == ["/v1/completions", *wanted, *wanted]


async def test_the_embedded_engine_is_flushed_before_each_run(pair: Pair) -> None:
    for server in (pair.eagle, pair.baseline):
        server.facts = {"eaglelens": {"engine": "embedded"}}
    await carry_out(pair)
    for server in (pair.eagle, pair.baseline):
        assert len(server.asked("/flush_cache")) == 1
        assert "cache_salt" not in server.asked("/v1/completions")[-1]


async def test_a_race_runs_both_at_once_and_a_slow_lane_does_not_slow_the_other(pair: Pair) -> None:
    pair.eagle.script = replace(EAGLE_SCRIPT, interval=0.02)
    pair.baseline.script = replace(PLAIN_SCRIPT, interval=0.2)  # 5 tokens a second
    comparison = await begin(pair, pace=RACE, own_devices=True)
    seen: dict[int, list[StreamView]] = {0: [], 1: []}

    async def look(side: int) -> float:
        async for view in comparison.watch(side):
            seen[side].append(view)
            if view.done:
                return asyncio.get_running_loop().time()
        raise AssertionError("the panel never became complete")

    async with started(comparison):
        left, right = await asyncio.gather(look(0), look(1))
    slow, fast = len(pair.baseline.script.sizes) * 0.2, len(pair.eagle.script.sizes) * 0.02
    assert right - left > (slow - fast) / 2
    assert len(seen[1][-1].tokens) == len(seen[0][-1].tokens)


async def test_a_race_on_shared_hardware_keeps_no_speedup(pair: Pair) -> None:
    shared = await carry_out(pair, pace=RACE)
    assert shared.is_show and shared.verdict.speedup is None
    own = await carry_out(pair, pace=RACE, own_devices=True)
    assert not own.is_show and own.verdict.speedup is not None
    runs = own.trials[0]
    assert max(runs.left.started_at, runs.right.started_at) < min(end_of(runs.left), end_of(runs.right))


async def test_the_panels_end_with_the_runs_of_the_typical_trial(pair: Pair) -> None:
    comparison = await carry_out(pair, trials=3)
    typical = comparison.verdict.typical
    assert typical is not None
    trial = comparison.verdict.trials[typical]
    assert [view.run for view in comparison.views] == [trial.left.request.rid, trial.right.request.rid]
    assert all(view.exactness is Exactness.EXACT for view in comparison.views)


async def test_a_run_says_what_hardware_it_ran_on(pair: Pair) -> None:
    comparison = await carry_out(pair)
    assert "GB" in str(comparison.trials[0].left.server["hardware"])


async def test_stop_ends_it_soon_and_keeps_what_has_arrived(pair: Pair) -> None:
    pair.eagle.script = replace(EAGLE_SCRIPT, interval=0.3)
    comparison = await begin(pair)
    async with started(comparison) as task:
        while not comparison.views[0].tokens:
            await asyncio.sleep(0.01)
        await comparison.stop()
        await asyncio.wait_for(task, 5)
    assert comparison.phase is Phase.STOPPED
    assert 0 < len(comparison.views[0].tokens) < sum(EAGLE_SCRIPT.sizes)
    assert len(pair.baseline.asked("/v1/completions")) == 1  # its warm-up
    assert comparison.verdict.speedup is None


async def test_a_lane_that_breaks_off_is_named_and_ends_the_comparison(pair: Pair) -> None:
    pair.baseline.script = replace(PLAIN_SCRIPT, fault="break", fault_after=3)
    comparison = await carry_out(pair)
    assert comparison.phase is Phase.FAILED
    assert "Baseline" in comparison.problem


async def test_a_lane_that_breaks_off_in_a_race_is_named_too(pair: Pair) -> None:
    comparison = await begin(pair, pace=RACE)
    async with started(comparison) as task:
        while not pair.baseline.sent_at:  # its warm-up goes on
            await asyncio.sleep(0.005)
        pair.baseline.script = replace(PLAIN_SCRIPT, fault="break", fault_after=3)
        await asyncio.wait_for(task, 20)
    assert comparison.phase is Phase.FAILED
    assert "Baseline" in comparison.problem


async def test_another_reply_written_meanwhile_is_warned_of(pair: Pair) -> None:
    live_runs = LiveRuns()
    with ChunkServer(Script.plain(400, interval=0.01), num_steps=0) as busy:
        lane = await read_lane(busy.url, "Other")

        async def chat() -> None:
            async for _ in stream_panel(lane, Request("other", (1,), Sampling()), live_runs):
                pass

        other = asyncio.create_task(chat())
        comparison = await begin(pair, live_runs)
        await comparison.run(asyncio.Lock())
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
    assert any("meanwhile" in warning for warning in comparison.warnings)
    quiet = await carry_out(pair)
    assert quiet.warnings == []


async def test_two_comparisons_take_turns(pair: Pair) -> None:
    lanes = await pair.lanes()
    comparisons, alone = Comparisons(), asyncio.Lock()
    one, other = (comparisons.begin(lanes, "Hello", SETTINGS, LiveRuns()) for _ in range(2))
    await asyncio.gather(one.run(alone), other.run(alone))
    assert one.trials and other.trials
    assert other.trials[0].left.started_at >= end_of(one.trials[0].right)


async def test_a_dated_baseline_stands_for_its_lane_and_says_when_it_was_measured(pair: Pair, tmp_path: Path) -> None:
    kept = KeptBaselines(tmp_path)
    measured = (await carry_out(pair)).trials[0].right
    kept.keep("Hello", replace(measured, started_at=1_750_000_000.0))
    pair.baseline.requests.clear()
    eagle, _ = await pair.lanes()
    dated = await find_dated(kept, eagle, "Hello", SETTINGS)
    assert dated is not None and dated.lane == "Baseline of 15 Jun 2025 15:06 UTC"
    settings = replace(SETTINGS, trials=2, pace=RACE)
    lanes = (eagle, make_dated_lane(dated))
    comparison = Comparisons().begin(lanes, "Hello", settings, LiveRuns(), dated)
    await comparison.run(asyncio.Lock())
    assert comparison.phase is Phase.DONE, comparison.problem
    assert not comparison.is_race and pair.baseline.asked("/v1/completions") == []
    assert [trial.right for trial in comparison.trials] == [dated, dated]
    assert comparison.views[1].title == dated.lane and len(comparison.views[1].tokens) == len(dated.tokens)
    assert comparison.verdict.speedup is not None
    assert "measured on 15 Jun 2025 15:06 UTC" in say_dated_order(dated, 2)


async def test_no_dated_baseline_of_other_settings_is_taken(pair: Pair, tmp_path: Path) -> None:
    kept = KeptBaselines(tmp_path)
    kept.keep("Hello", (await carry_out(pair)).trials[0].right)
    eagle, _ = await pair.lanes()
    assert await find_dated(kept, eagle, "Hello", replace(SETTINGS, temperature=0.5)) is None


def test_an_empty_or_endless_prompt_is_refused_with_a_reason() -> None:
    assert "Write a prompt" in find_refusal("  ", SETTINGS)
    assert "Shorten" in find_refusal("x" * 20_000, SETTINGS)
    assert find_refusal("Hello", SETTINGS) == ""
