"""Attaching to a real SGLang 0.5.23 through its real router, which hides most of it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import httpx
import pytest

from backend.client import flush_cache, read_lane, read_load, stream_run, tokenize_chat
from backend.errors import LaneError
from backend.events import Exactness, Request, Run, RunEnded, Sampling, TokensArrived
from backend.lanes import Lane
from backend.ports import find_free_port

pytestmark = pytest.mark.heavy
HOST = "127.0.0.1"
PROMPT = (7, 8, 9)
PATIENCE = 60.0  # seconds for the router to start and to look at its servers


@contextmanager
def route_to(*servers: str) -> Iterator[str]:
    """SGLang's router in front of these servers; yields its address once it knows them all."""
    port = find_free_port(HOST, 31000)
    command = [sys.executable, "-m", "sglang_router.launch_router", "--host", HOST, "--port", str(port)]
    command += ["--prometheus-port", str(find_free_port(HOST, 29500))]
    command += ["--worker-urls", *servers] if servers else []
    url = f"http://{HOST}:{port}"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as router:
        try:
            wait_for_workers(url, len(servers))
            yield url
        finally:
            router.terminate()


def wait_for_workers(url: str, count: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/workers", timeout=5).json()["total"] == count:
                return
        except httpx.TransportError:
            pass  # it is still starting
        time.sleep(0.2)
    raise AssertionError(f"the router did not find {count} servers within {PATIENCE:g} s")


@pytest.fixture(scope="module")
def router(chain_eagle3_server: str) -> Iterator[str]:
    with route_to(chain_eagle3_server) as url:
        yield url


async def complete(lane: Lane, max_tokens: int, stop: asyncio.Event | None = None) -> Run:
    request = Request(uuid4().hex, PROMPT, Sampling(max_tokens=max_tokens, ignore_eos=True))
    run = None
    async for event in stream_run(lane, request, stop=stop):
        if stop is not None and isinstance(event, TokensArrived) and event.first_index > 20:
            stop.set()
        if isinstance(event, RunEnded):
            run = event.run
    assert run is not None and run.error is None
    return run


async def test_a_reply_through_the_router_is_labelled_exactly(router: str) -> None:
    lane = await read_lane(router, "EAGLE-3")
    run = await complete(lane, 20)
    assert run.exactness is Exactness.EXACT
    assert [token.source.value[0] for token in run.tokens] == list("ft" + "dddtt" * 3 + "ddd")
    assert [token.piece for token in run.tokens] == [f" w{index}" for index in range(10, 30)]


async def test_the_server_behind_the_router_tells_what_the_router_hides(router: str, chain_eagle3_server: str) -> None:
    lane = await read_lane(router, "EAGLE-3")
    assert (lane.version, lane.num_steps, lane.workers) == ("0.5.23", 3, (chain_eagle3_server,))
    assert lane.warnings == (
        f"EAGLE-3 is SGLang's router; what is said of the server is said by {chain_eagle3_server} behind it.",
    )
    assert await tokenize_chat(lane, [{"role": "user", "content": "w7 w8"}])
    assert (await read_load(lane, with_averages=False)).running == 0
    await flush_cache(lane)


async def test_stopping_a_reply_through_the_router_stops_it_on_the_server(router: str) -> None:
    lane = await read_lane(router, "EAGLE-3")
    run = await complete(lane, 3000, stop=asyncio.Event())
    assert run.finish_reason == "abort" and run.exactness is Exactness.EXACT
    assert len(run.tokens) < 3000
    deadline = time.monotonic() + 10
    while (await read_load(lane, with_averages=False)).running and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
    assert (await read_load(lane, with_averages=False)).running == 0


async def test_a_router_without_a_server_says_so() -> None:
    with route_to() as url, pytest.raises(LaneError, match="no healthy server behind it"):
        await read_lane(url, "EAGLE-3")
