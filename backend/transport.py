"""When bytes leave and arrive: an HTTP transport that keeps the times of one request.

`openai` brings its own HTTP library (httpx up to 2.x, httpx2 later); `http` is that one, since a client of one
takes no transport of the other.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import openai

_CLIENT = next(base for base in openai.DefaultAsyncHttpxClient.__mro__ if base.__name__ == "AsyncClient")
# httpx or httpx2: the same interface under two names, so there is no one type to give it.
http: Any = import_module(_CLIENT.__module__.partition(".")[0])


@dataclass
class ArrivalClock:
    """`time.monotonic()` seconds of one request: when it began to be sent, and when the last bytes arrived."""

    sent: float | None = None
    arrived: float = 0.0

    def since_sent(self) -> float:
        """Seconds from sending to the last bytes that arrived."""
        return max(0.0, self.arrived - (self.arrived if self.sent is None else self.sent))


def connect(base_url: str, ca_file: str | None) -> Any:
    """A transport to a lane. It takes no proxy from the environment: lanes are mostly on this machine.

    Raises OSError where `ca_file` cannot be read.
    """
    if not base_url.startswith("https:"):
        return http.AsyncHTTPTransport(verify=False)  # loading certificates would take time and serve nothing
    return http.AsyncHTTPTransport(verify=ssl.create_default_context(cafile=ca_file))


class ArrivalTransport(http.AsyncBaseTransport):  # type: ignore[misc]
    """Notes on `clock` when a request leaves (behind the connecting) and when each block of its answer arrives."""

    def __init__(self, inner: Any, clock: ArrivalClock) -> None:
        self._inner = inner
        self._clock = clock

    async def handle_async_request(self, request: Any) -> Any:
        request.extensions = {**request.extensions, "trace": self._note_sending}
        response = await self._inner.handle_async_request(request)
        stream = _TimedStream(response.stream, self._clock)
        return http.Response(
            response.status_code, headers=response.headers, stream=stream, extensions=response.extensions
        )

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _note_sending(self, event: str, info: object) -> None:  # noqa: ARG002 - the library passes both
        if event == "http11.send_request_headers.started":
            self._clock.sent = time.monotonic()


class _TimedStream(http.AsyncByteStream):  # type: ignore[misc]
    def __init__(self, inner: Any, clock: ArrivalClock) -> None:
        self._inner = inner
        self._clock = clock

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for block in self._inner:
            self._clock.arrived = time.monotonic()
            yield block

    async def aclose(self) -> None:
        await self._inner.aclose()
