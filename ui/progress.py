"""A run as it grows: folds a stream of events into snapshots, at a pace a page can follow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic

from backend.events import Chunk, Event, Run, RunEnded, RunStarted, Token, TokensArrived

PAGE_INTERVAL = 0.06  # seconds between two updates of the page: about 16 a second
CLOCK_INTERVAL = 0.5  # seconds between two updates while nothing arrives


@dataclass
class Progress:
    """What has arrived of one run. `follow` alone changes it; everyone else reads.

    `tokens` carry provisional labels until `run` is there. `waited` is in seconds since the request was sent.
    """

    started: RunStarted | None = None
    tokens: Sequence[Token] = ()
    chunks: Sequence[Chunk] = ()
    run: Run | None = None
    waited: float = 0.0
    _tokens: list[Token] = field(default_factory=list, repr=False)
    _chunks: list[Chunk] = field(default_factory=list, repr=False)

    def take(self, event: Event) -> None:
        """Fold in one event."""
        match event:
            case RunStarted():
                self.started = event
            case TokensArrived():
                self._tokens[event.first_index :] = event.tokens
                self._chunks.append(event.chunk)
                self.tokens, self.chunks = self._tokens, self._chunks
            case RunEnded(run=run):
                self.run, self.tokens, self.chunks = run, run.tokens, run.chunks


async def follow(events: AsyncIterator[Event], interval: float = PAGE_INTERVAL) -> AsyncGenerator[Progress, None]:
    """Yield the growing run at most once per `interval` seconds, and once more when it is complete.

    Events are taken in as they come, in a task of their own, so a slow page never slows the stream.
    Closing this generator closes `events`, which aborts the request.
    """
    progress = Progress()
    news = asyncio.Event()
    begun = monotonic()

    async def take_in() -> None:
        async for event in events:
            progress.take(event)
            news.set()

    task = asyncio.create_task(take_in())
    task.add_done_callback(lambda _: news.set())
    try:
        while not task.done():
            with suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), CLOCK_INTERVAL)
            news.clear()
            progress.waited = monotonic() - begun
            if progress.run is None and not task.done():
                yield progress
                await asyncio.sleep(interval)
        await task
        yield progress
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        close = getattr(events, "aclose", None)
        if close is not None:
            await close()
