"""A stream of events as snapshots at the page's pace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from backend.events import (
    Chunk,
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
from ui.progress import follow

REQUEST = Request("rid", (1,), Sampling())


async def write(count: int, pause: float, closed: list[bool]) -> AsyncIterator[Event]:
    try:
        yield RunStarted("EAGLE-3", REQUEST, 0.0, 3)
        tokens = [Token(index, index, " a", Source.TARGET, index, 0, 0.0) for index in range(count)]
        for token in tokens:
            yield TokensArrived(token.index, (token,), Chunk(0.0, (token.id,), " a"))
            await asyncio.sleep(pause)
        yield RunEnded(Run("EAGLE-3", REQUEST, 0.0, (), tuple(tokens), None, Exactness.EXACT, 3, "stop"))
    finally:
        closed.append(True)


async def test_many_events_become_few_snapshots_and_the_last_is_complete() -> None:
    closed: list[bool] = []
    counts = [len(progress.tokens) async for progress in follow(write(200, 0.001, closed), interval=0.05)]
    assert counts == sorted(counts)
    assert counts[-1] == 200
    assert len(counts) < 100


async def test_closing_the_snapshots_closes_the_stream() -> None:
    closed: list[bool] = []
    snapshots = follow(write(1000, 0.01, closed))
    await anext(snapshots)
    await snapshots.aclose()
    assert closed == [True]


async def test_a_fault_of_the_stream_is_not_lost() -> None:
    async def fail() -> AsyncIterator[Event]:
        yield RunStarted("EAGLE-3", REQUEST, 0.0, 3)
        raise RuntimeError("broken")

    try:
        async for _ in follow(fail()):
            pass
    except RuntimeError as error:
        assert str(error) == "broken"
    else:
        raise AssertionError("the fault was swallowed")
