"""A process between a client and a server that notes when each block of bytes passes, and changes nothing.

Run as `python wire_tap.py SERVER_PORT LOG`: it prints the port it listens on, and writes a line of JSON per block.
"""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import urlsplit

import h11


@dataclass(frozen=True)
class Block:
    """Bytes that passed at once. `at` is in `time.monotonic()` seconds, the same clock for all processes."""

    connection: int
    from_client: bool
    at: float
    data: bytes


@dataclass(frozen=True)
class WireEvent:
    """One server-sent event with tokens; `arrived` is in seconds after its request passed."""

    arrived: float
    ids: tuple[int, ...]


@dataclass(frozen=True)
class WireReply:
    """One streamed reply as it passed."""

    rid: str
    events: tuple[WireEvent, ...]


@contextmanager
def tap(server_url: str, log: Path) -> Iterator[str]:
    """The base URL of a tap in front of `server_url`; what passes is written to `log`."""
    command = [sys.executable, __file__, str(urlsplit(server_url).port), str(log)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


def read_replies(log: Path) -> dict[str, WireReply]:
    """The streamed completions that passed, by request id."""
    connections: dict[int, list[Block]] = {}
    for line in log.read_text().splitlines():
        connection, from_client, at, data = json.loads(line)
        block = Block(connection, from_client, at, base64.b64decode(data))
        connections.setdefault(connection, []).append(block)
    replies = (_read_reply(blocks) for blocks in connections.values())
    return {reply.rid: reply for reply in replies if reply is not None}


def _read_reply(blocks: list[Block]) -> WireReply | None:
    """The reply of a connection that carried one streamed completion; None for any other."""
    asked = b"".join(block.data for block in blocks if block.from_client)
    head, _, body = asked.partition(b"\r\n\r\n")
    if not head.startswith(b"POST /v1/completions "):
        return None
    sent = next(block.at for block in blocks if block.from_client)
    parser = h11.Connection(h11.CLIENT)
    parser.send(h11.Request(method="POST", target="/v1/completions", headers=[("Host", "lane")]))
    parser.send(h11.EndOfMessage())
    events: list[WireEvent] = []
    rest = ""
    for block in blocks:
        if block.from_client:
            continue
        *whole, rest = (rest + _feed(parser, block.data)).split("\n\n")
        events += [WireEvent(block.at - sent, ids) for text in whole if (ids := _read_ids(text))]
    return WireReply(str(json.loads(body)["rid"]), tuple(events))


def _feed(parser: h11.Connection, data: bytes) -> str:
    parser.receive_data(data)
    text = ""
    while True:
        event = parser.next_event()
        if isinstance(event, h11.Data):
            text += event.data.decode()
        elif event is h11.NEED_DATA or isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
            return text


def _read_ids(text: str) -> tuple[int, ...]:
    data = text.removeprefix("data: ")
    if data == "[DONE]":
        return ()
    event: dict[str, Any] = json.loads(data)
    return tuple(token for choice in event["choices"] for token in choice.get("token_ids") or ())


async def _serve(server_port: int, log: TextIO) -> None:
    connections = iter(range(sys.maxsize))

    def note(connection: int, from_client: bool, data: bytes) -> None:
        entry = [connection, from_client, time.monotonic(), base64.b64encode(data).decode()]
        log.write(json.dumps(entry) + "\n")
        log.flush()

    async def pump(
        connection: int, from_client: bool, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(65536):
            note(connection, from_client, data)
            writer.write(data)
            await writer.drain()
        writer.close()

    async def accept(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        connection = next(connections)
        asked = await client.read(65536)  # before connecting, which would make the request seem late
        note(connection, True, asked)
        server, to_server = await asyncio.open_connection("127.0.0.1", server_port)
        to_server.write(asked)
        await asyncio.gather(
            pump(connection, True, client, to_server),
            pump(connection, False, server, to_client),
            return_exceptions=True,  # either side may hang up at any time
        )

    listening = await asyncio.start_server(accept, "127.0.0.1", 0)
    print(listening.sockets[0].getsockname()[1], flush=True)
    await listening.serve_forever()


if __name__ == "__main__":
    with Path(sys.argv[2]).open("w") as opened:
        asyncio.run(_serve(int(sys.argv[1]), opened))
