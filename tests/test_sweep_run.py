"""A sweep on a real server: its order, its turn, its end, and what it leaves out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from backend.client import read_lane, stream_run
from backend.embedded.server import EmbeddedServer, bind_port
from backend.events import Request, RunEnded, Sampling
from backend.lanes import Lane, lane_from_facts
from tests.closed_form_engine import ClosedFormEngine
from ui.compare_run import Phase
from ui.draft_length import AS_ENGINE, offer_draft_lengths
from ui.live_runs import LiveRuns
from ui.sweep_run import Sweep, SweepSettings

SETTINGS = SweepSettings(system="", max_tokens=26, repeats=1)
SGLANG = {"version": "0.5.23", "speculative_algorithm": "EAGLE3", "speculative_num_steps": 3}


@dataclass
class Served:
    """An engine whose every token is known, and the address of its drafting lane."""

    engine: ClosedFormEngine
    url: str

    async def lane(self) -> Lane:
        return await read_lane(self.url, "EAGLE-3")

    def asked(self) -> list[int]:
        """Drafts a step of each request, in the order of the requests."""
        return [generation._num_steps for generation in self.engine.generations]


@pytest.fixture
def served() -> Iterator[Served]:
    engine = ClosedFormEngine(before_step=lambda: time.sleep(0.005))
    server = EmbeddedServer(engine, bind_port("127.0.0.1", 0), bind_port("127.0.0.1", 0))
    server.start()
    yield Served(engine, server.eagle.url)
    server.stop()


async def test_a_sweep_warms_up_and_then_runs_every_number_of_drafts_up_and_back(served: Served) -> None:
    sweep = Sweep(await served.lane(), "w9 w10", replace(SETTINGS, repeats=2), LiveRuns())
    await sweep.run()
    assert (sweep.phase, sweep.problem, sweep.warnings) == (Phase.DONE, "", [])
    up = [0, 1, 2, 3, 4, 5]
    assert served.asked() == [0, 5, *up, *up[::-1]]
    points = sweep.points
    assert [point.num_steps for point in points] == up
    assert all(point.speed.count == 2 for point in points)


async def test_the_points_are_those_of_the_engines_own_counters(served: Served) -> None:
    sweep = Sweep(await served.lane(), "w9 w10", SETTINGS, LiveRuns())
    await sweep.run()
    lengths = {point.num_steps: point.acceptance_length for point in sweep.points}
    assert lengths[0] == 1.0
    # From w10 the draft is wrong after every fifth token: its steps yield 4, 1, 4, 1, … tokens.
    assert lengths[3] == pytest.approx(2.5)
    assert [lengths[steps] for steps in (1, 2, 3)] == sorted(lengths[steps] or 0 for steps in (1, 2, 3))


async def test_no_run_finds_the_prompt_in_the_prefix_cache(served: Served) -> None:
    sweep = Sweep(await served.lane(), "w9 w10", SETTINGS, LiveRuns())
    await sweep.run()
    assert all(generation.cached_tokens == 0 for generation in served.engine.generations[2:])


async def test_a_sweep_waits_while_something_else_measures(served: Served) -> None:
    live_runs = LiveRuns()
    sweep = Sweep(await served.lane(), "w9 w10", SETTINGS, live_runs)
    async with live_runs.alone:
        task = asyncio.create_task(sweep.run())
        await asyncio.sleep(0.3)
        assert (sweep.phase, served.asked()) == (Phase.WAITING, [])
    await task
    assert sweep.phase is Phase.DONE


async def test_a_stopped_sweep_keeps_its_finished_points_and_frees_the_engine(served: Served) -> None:
    live_runs = LiveRuns()
    sweep = Sweep(await served.lane(), "w9 w10", replace(SETTINGS, max_tokens=64), live_runs)
    task = asyncio.create_task(sweep.run())
    while sweep.done < 2:
        await asyncio.sleep(0.02)
    await sweep.stop()
    await task
    assert sweep.phase is Phase.STOPPED
    assert 2 <= len(sweep.points) < 6
    assert not live_runs.alone.locked()
    assert served.engine.generations[-1].closed


async def test_a_server_that_is_gone_ends_the_sweep_with_a_sentence(served: Served) -> None:
    gone = replace(await served.lane(), base_url="http://127.0.0.1:9")
    sweep = Sweep(gone, "w9 w10", SETTINGS, LiveRuns())
    await sweep.run()
    assert sweep.phase is Phase.FAILED
    assert "127.0.0.1:9" in sweep.problem


async def test_a_request_with_its_own_number_of_drafts_changes_no_token_and_later_ones_nothing(served: Served) -> None:
    lane = await served.lane()
    texts = []
    for name, num_steps in (("a", None), ("b", 0), ("c", 5), ("d", 0), ("e", None)):
        request = Request(name, (9, 10), Sampling(max_tokens=30, num_steps=num_steps))
        runs = [event.run async for event in stream_run(lane, request) if isinstance(event, RunEnded)]
        texts.append(runs[0].text)
        assert runs[0].num_steps == (3 if num_steps is None else num_steps)
    assert len(set(texts)) == 1
    assert served.asked() == [3, 0, 5, 0, 3]


def test_only_the_embedded_engine_is_offered_numbers_of_drafts() -> None:
    embedded = lane_from_facts("EAGLE-3", "x", {**SGLANG, "eaglelens": {"max_num_steps": 2}}, {})
    choices = [value for _, value in offer_draft_lengths(embedded).choices]
    assert (choices, offer_draft_lengths(embedded).visible) == ([AS_ENGINE, 0, 1, 2], True)
    sglang = lane_from_facts("EAGLE-3", "x", SGLANG, {})
    assert sglang.max_num_steps == 0
    assert not offer_draft_lengths(sglang).visible
    assert not offer_draft_lengths(None).visible
