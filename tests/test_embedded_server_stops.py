"""Whoever stops listening, aborts or shuts down stops the engine within a step."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from backend.embedded.scheduler import Limits
from backend.embedded.server import EmbeddedServer, PortInUseError, bind_port
from tests.closed_form_engine import ClosedFormEngine

WAIT = 20.0  # seconds until a test gives up
ENDLESS: dict[str, Any] = {"prompt": [9], "temperature": 0, "max_tokens": 4000, "ignore_eos": True}
STREAMED = {**ENDLESS, "stream": True}


def dawdle() -> None:
    """Slow enough that 4,000 tokens outlast every test."""
    time.sleep(0.02)


@contextmanager
def serving(limits: Limits | None = None, before_step: Callable[[], None] = dawdle) -> Iterator[EmbeddedServer]:
    with EmbeddedServer.bind(ClosedFormEngine(before_step=before_step), limits=limits) as server:
        yield server


def count_requests(server: EmbeddedServer) -> tuple[int, int]:
    load = httpx.get(server.eagle.url + "/v1/loads").json()["loads"][0]
    return load["num_running_reqs"], load["num_waiting_reqs"]


def wait_for_requests(server: EmbeddedServer, running: int, waiting: int = 0) -> None:
    deadline = time.monotonic() + WAIT
    while count_requests(server) != (running, waiting):
        assert time.monotonic() < deadline, f"still {count_requests(server)}"
        time.sleep(0.01)


@contextmanager
def streaming(url: str, body: dict[str, Any]) -> Iterator[Iterator[str]]:
    """The lines of a stream whose first event has arrived."""
    with httpx.stream("POST", url, json=body) as response:
        lines = response.iter_lines()  # held on to: httpx hangs up when it is collected
        read_event(lines)
        yield lines


def read_event(lines: Iterator[str]) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(next(line for line in lines if line).removeprefix("data: "))
    return event


@pytest.mark.parametrize("path", ["/v1/completions", "/generate", "/v1/chat/completions"])
def test_a_closed_stream_frees_the_engine(path: str) -> None:
    body: dict[str, Any] = {**ENDLESS, "stream": True}
    if path == "/generate":
        body = {"input_ids": [9], "stream": True, "sampling_params": {"max_new_tokens": 4000, "ignore_eos": True}}
    if path == "/v1/chat/completions":
        body = {**ENDLESS, "stream": True, "messages": [{"role": "user", "content": "w9"}]}
    with serving() as server:
        with streaming(server.eagle.url + path, body):
            assert count_requests(server) == (1, 0)
        wait_for_requests(server, 0)


def test_a_hung_up_request_without_a_stream_frees_the_engine() -> None:
    with serving() as server:
        payload = json.dumps(ENDLESS).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
        )
        with socket.create_connection((server.eagle.host, server.eagle.port)) as connection:
            connection.sendall(head.encode() + payload)
            wait_for_requests(server, 1)
        wait_for_requests(server, 0)


def test_a_closed_stream_that_still_waits_leaves_the_queue() -> None:
    with serving(Limits(max_running=1)) as server, streaming(server.eagle.url + "/v1/completions", STREAMED):
        with httpx.stream("POST", server.eagle.url + "/v1/completions", json=STREAMED):
            wait_for_requests(server, 1, 1)
        wait_for_requests(server, 1, 0)


def test_an_abort_by_id_ends_the_stream_with_its_counters() -> None:
    body = {**ENDLESS, "stream": True, "rid": "chat-1", "return_token_ids": True, "return_spec_tokens_details": True}
    with serving() as server, httpx.stream("POST", server.eagle.url + "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        sizes = [len(read_event(lines)["choices"][0]["token_ids"])]
        assert httpx.post(server.baseline.url + "/abort_request", json={"rid": "chat-1"}).status_code == 200
        sizes.append(len(read_event(lines)["choices"][0]["token_ids"]))
        assert httpx.post(server.eagle.url + "/abort_request", json={"rid": "chat-1"}).status_code == 200
        events = [json.loads(line.removeprefix("data: ")) for line in lines if line and line != "data: [DONE]"]
        chunks = [event["choices"][0] for event in events if event["choices"]]
        assert chunks[-1]["finish_reason"] == "abort"
        sizes += [len(chunk["token_ids"]) for chunk in chunks]
        details = events[-1]["sglext"]["spec_tokens_details"]
        assert sum(sizes) == 1 + details["spec_verify_ct"] + details["spec_num_correct_drafts"]


def test_abort_all_ends_every_request_of_the_address() -> None:
    with serving() as server:
        answers: list[httpx.Response] = []

        def ask() -> None:
            answers.append(httpx.post(server.eagle.url + "/v1/completions", json=ENDLESS, timeout=WAIT))

        askers = [threading.Thread(target=ask) for _ in range(3)]
        for asker in askers:
            asker.start()
        wait_for_requests(server, 3)
        httpx.post(server.eagle.url + "/abort_request", json={"abort_all": True})
        for asker in askers:
            asker.join(WAIT)
        assert [answer.json()["choices"][0]["finish_reason"] for answer in answers] == ["abort"] * 3


def test_a_full_queue_is_a_503_at_once() -> None:
    limits = Limits(max_running=1, max_queued=0)
    with serving(limits) as server, streaming(server.eagle.url + "/v1/completions", STREAMED):
        for body in (STREAMED, ENDLESS):
            refused = httpx.post(server.eagle.url + "/v1/completions", json=body)
            assert refused.status_code == 503
            assert refused.json()["message"] == "The request queue is full."
        refused = httpx.post(server.eagle.url + "/generate", json={"input_ids": [9]})
        assert (refused.status_code, refused.json()) == (503, {"error": {"message": "The request queue is full."}})


def test_the_cache_is_not_flushed_while_something_runs() -> None:
    with serving() as server:
        with streaming(server.eagle.url + "/v1/completions", STREAMED):
            assert httpx.get(server.eagle.url + "/flush_cache").status_code == 400
        assert httpx.get(server.eagle.url + "/flush_cache?timeout=10").status_code == 200


def test_an_engine_error_is_told_and_the_server_goes_on() -> None:
    failing = threading.Event()

    def fail_when_told() -> None:
        if failing.is_set():
            raise RuntimeError("no memory left")

    with serving(before_step=fail_when_told) as server:
        failing.set()
        answer = httpx.post(server.eagle.url + "/v1/completions", json=ENDLESS)
        assert answer.status_code == 500 and "no memory left" in answer.json()["message"]
        streamed = httpx.post(server.eagle.url + "/v1/completions", json=STREAMED)
        error, done = [line.removeprefix("data: ") for line in streamed.text.splitlines() if line]
        assert "no memory left" in json.loads(error)["error"]["message"] and done == "[DONE]"
        failing.clear()
        answer = httpx.post(server.eagle.url + "/v1/completions", json={"prompt": [9], "max_tokens": 2})
        assert answer.status_code == 200


def test_stopping_the_server_ends_a_running_stream_and_frees_the_ports() -> None:
    with serving() as server:
        with streaming(server.eagle.url + "/v1/completions", STREAMED) as lines:
            server.stop()
            rest = [line for line in lines if line]
        assert "shutting down" in rest[-2] and rest[-1] == "data: [DONE]"
        assert not server.is_alive
        for place in (server.eagle, server.baseline):
            bind_port(place.host, place.port).close()


def test_a_port_in_use_is_named() -> None:
    with serving() as server, pytest.raises(PortInUseError, match=f"Port {server.eagle.port} on 127.0.0.1 is in use"):
        bind_port("127.0.0.1", server.eagle.port)


def test_a_port_that_another_server_takes_while_the_engine_loads_is_reported() -> None:
    late = EmbeddedServer.bind(ClosedFormEngine())
    with (
        bind_port("127.0.0.1", late.eagle.port) as taker,  # both may bind as long as neither listens
        pytest.raises(OSError, match="could not listen"),
    ):
        taker.listen()
        late.start()
    assert not late.is_alive
