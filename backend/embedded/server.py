"""The embedded server: one engine behind two addresses, as two SGLang servers would be."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import threading
from types import TracebackType
from typing import Self

import uvicorn

from backend.embedded.engine_protocol import Engine
from backend.embedded.scheduler import Limits, Scheduler
from backend.embedded.surface import Address, Surface

log = logging.getLogger(__name__)

START_SECONDS = 30.0
BACKLOG = 128


class PortInUseError(OSError):
    """The port cannot be had; the message names it."""


def bind_port(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet; port 0 takes a free one. Raises PortInUseError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name != "nt":
            # On Windows this option would let two servers share a port.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(
                f"Port {port} on {host} is in use; stop what uses it, or choose another port."
            ) from error
        raise PortInUseError(f"Port {port} on {host} cannot be used: {error.strerror or error}.") from error
    return bound


class EmbeddedServer:
    """Serves an engine at two addresses: EAGLE-3, and the baseline from the same weights without the draft.

    `start` returns once both accept connections; `stop` ends what is being generated and frees the ports. Use it as a
    context manager to have both. The server runs in threads of its own; signals are the caller's business.
    """

    def __init__(
        self, engine: Engine, eagle: socket.socket, baseline: socket.socket, *, limits: Limits | None = None
    ) -> None:
        self._scheduler = Scheduler(engine, limits or Limits())
        self._sockets = (eagle, baseline)
        self.eagle = Address(*_place(eagle), speculative=True)
        self.baseline = Address(*_place(baseline), speculative=False)
        surfaces = [Surface(address, engine, self._scheduler) for address in (self.eagle, self.baseline)]
        self._servers = [
            uvicorn.Server(
                uvicorn.Config(
                    surface.build_app(),
                    log_level="warning",
                    access_log=False,
                    backlog=BACKLOG,
                    timeout_graceful_shutdown=1,
                    lifespan="off",
                    ws="none",
                )
            )
            for surface in surfaces
        ]
        self._listening = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="http", daemon=True)

    @classmethod
    def bind(
        cls,
        engine: Engine,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        baseline_port: int = 0,
        limits: Limits | None = None,
    ) -> Self:
        """A server on these ports. Raises PortInUseError."""
        eagle = bind_port(host, port)
        try:
            baseline = bind_port(host, baseline_port)
        except PortInUseError:
            eagle.close()
            raise
        return cls(engine, eagle, baseline, limits=limits)

    def start(self) -> None:
        """Returns once both addresses accept connections. Raises OSError where one cannot listen."""
        self._scheduler.start()
        self._thread.start()
        while not self._listening.wait(0.01):
            if not self._thread.is_alive():
                break
        if not all(server.started for server in self._servers):
            self.stop()
            raise OSError(f"The embedded server could not listen: {self._error}") from self._error

    def stop(self) -> None:
        """Ends every request within a step and closes both addresses. Safe to call twice."""
        self._scheduler.close()
        for server in self._servers:
            server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        for bound in self._sockets:
            bound.close()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive() and self._scheduler.is_alive

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _serve(self) -> None:
        try:
            asyncio.run(self._serve_both())
        except BaseException as error:  # the starting thread reports it
            self._error = error
        finally:
            self._listening.set()

    async def _serve_both(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for server, bound in zip(self._servers, self._sockets, strict=True):
                tasks.create_task(server.serve(sockets=[bound]))
            tasks.create_task(self._announce())

    async def _announce(self) -> None:
        while not all(server.started or server.should_exit for server in self._servers):
            await asyncio.sleep(0.005)
        self._listening.set()


def _place(bound: socket.socket) -> tuple[str, int]:
    host, port = bound.getsockname()[:2]
    return str(host), int(port)
