"""Reads one streamed request in a thread with an event loop of its own, so that nothing the app does delays it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import openai

from backend.events import Request
from backend.lanes import Lane
from backend.transport import ArrivalClock, ArrivalTransport, connect, http
from backend.wire import Delta, completions_body, generate_body, read_completions_chunk, read_generate_chunk

CONNECT_TIMEOUT = 5.0  # seconds
ABORT_TIMEOUT = 2.0
STOP_GRACE = 1.0  # seconds in which the last chunk, with the counters, may still come after an abort


@dataclass(frozen=True)
class Arrival:
    """A delta and its arrival, in seconds after the request was sent."""

    delta: Delta
    arrived: float


class Reader:
    """One request. Iterate to get what arrives; `stop` aborts it on the server and ends the iteration soon after.

    Raises what broke the stream, after all that had arrived. `timeout` is the longest silence, in seconds.
    """

    def __init__(self, lane: Lane, request: Request, timeout: float) -> None:
        self._lane = lane
        self._request = request
        self._timeout = timeout
        self._queue: asyncio.Queue[Arrival | Exception | None] = asyncio.Queue()
        self._home = asyncio.get_running_loop()
        self._wire = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=f"read {request.rid}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Abort the request, from any thread, without waiting."""
        with suppress(RuntimeError):  # its loop has closed: the stream is over, there is nothing to stop
            self._wire.call_soon_threadsafe(self._stopping.set)

    async def __aiter__(self) -> AsyncIterator[Arrival]:
        while (item := await self._queue.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._wire) as runner:
            runner.run(self._drive())

    def _put(self, item: Arrival | Exception | None) -> None:
        with suppress(RuntimeError):  # the consumer's loop has closed: nobody is left to tell
            self._home.call_soon_threadsafe(self._queue.put_nowait, item)

    async def _drive(self) -> None:
        reading = asyncio.create_task(self._read())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopped = not reading.done()
        if stopped:
            await self._abort()
            await asyncio.wait({reading}, timeout=STOP_GRACE)
        reading.cancel()
        stopping.cancel()
        result, _ = await asyncio.gather(reading, stopping, return_exceptions=True)
        if isinstance(result, Exception) and not stopped:
            self._put(result)
            if not isinstance(result, openai.APIStatusError):
                await self._abort()
        self._put(None)

    async def _read(self) -> None:
        clock = ArrivalClock()
        async with _open_client(self._lane, clock, self._timeout) as client:
            if self._lane.speaks_completions:
                await self._read_completions(client, clock)
            else:
                await self._read_generate(client, clock)

    async def _read_completions(self, client: openai.AsyncOpenAI, clock: ArrivalClock) -> None:
        stream = await client.completions.create(**completions_body(self._lane, self._request))
        async for chunk in stream:
            self._put(Arrival(read_completions_chunk(chunk.to_dict()), clock.since_sent()))

    async def _read_generate(self, client: openai.AsyncOpenAI, clock: ArrivalClock) -> None:
        stream: openai.AsyncStream[Any] = await client.post(
            f"{self._lane.base_url}/generate",
            body=generate_body(self._request),
            cast_to=object,
            stream=True,
            stream_cls=openai.AsyncStream[Any],
        )
        known, text = 0, ""
        async for chunk in stream:
            delta = read_generate_chunk(chunk, known, text, ids_are_deltas=self._lane.ids_are_deltas)
            known += len(delta.ids or ())
            text = chunk.get("text") or ""
            self._put(Arrival(delta, clock.since_sent()))

    async def _abort(self) -> None:
        for server in self._lane.servers:
            with suppress(http.HTTPError, OSError):  # a server that is gone generates nothing any more
                transport = connect(server.base_url, server.ca_file)
                async with http.AsyncClient(transport=transport, timeout=ABORT_TIMEOUT) as client:
                    await client.post(
                        f"{server.base_url}/abort_request",
                        json={"rid": self._request.rid},
                        headers=authorise(server),
                    )


def authorise(lane: Lane) -> dict[str, str]:
    """The headers that carry the lane's key, if it has one."""
    return {} if lane.api_key is None else {"Authorization": f"Bearer {lane.api_key}"}


def _open_client(lane: Lane, clock: ArrivalClock, timeout: float) -> openai.AsyncOpenAI:
    limits = http.Timeout(timeout, connect=CONNECT_TIMEOUT)
    transport = ArrivalTransport(connect(lane.base_url, lane.ca_file), clock)
    return openai.AsyncOpenAI(
        api_key=lane.api_key or "none",
        base_url=f"{lane.base_url}/v1",
        max_retries=0,  # a silent retry would spoil the time to the first token
        timeout=limits,
        http_client=http.AsyncClient(transport=transport, timeout=limits),
    )
