"""The embedded server answers what a real SGLang 0.5.23 answered, field by field and in the same order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from backend.embedded.server import EmbeddedServer
from tests.closed_form_engine import ClosedFormEngine
from tests.wire import merge_like, spell, split_events

CAPTURES = Path(__file__).parent / "captures"
LANES = {"chain_eagle3": "eagle", "chain_nospec_torch_native": "baseline"}
STREAMED = ["completions", "chat", "chat_usage_meta", "generate"]


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer.bind(ClosedFormEngine()) as running:
        yield running


def read_request(name: str) -> tuple[str, dict[str, Any]]:
    request = json.loads((CAPTURES / f"{name}.req.json").read_text())["request"]
    return request["path"], request["body"]


def address(server: EmbeddedServer, capture: str) -> str:
    return server.eagle.url if LANES[capture] == "eagle" else server.baseline.url


@pytest.mark.parametrize("capture", LANES)
@pytest.mark.parametrize("name", STREAMED)
def test_a_streamed_reply_has_sglangs_chunks(server: EmbeddedServer, capture: str, name: str) -> None:
    path, body = read_request(f"{capture}.{name}")
    url = address(server, capture) + path
    if name == "chat_usage_meta":  # captured with a warm prefix cache
        httpx.post(url, json=body)
    with httpx.stream("POST", url, json=body) as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        answer = split_events(response.read().decode())
    captured = split_events((CAPTURES / f"{capture}.{name}.sse").read_text())
    if LANES[capture] == "baseline":
        answer = merge_like(answer, captured)
    assert [spell(event) for event in answer] == [spell(event) for event in captured]


def test_the_request_that_eaglelens_makes_is_answered_like_sglang(server: EmbeddedServer) -> None:
    path, body = read_request("chain_eagle3.completions_spec")
    answer = split_events(httpx.post(server.eagle.url + path, json=body).text)
    captured = split_events((CAPTURES / "chain_eagle3.completions_spec.sse").read_text())
    assert [spell(event) for event in answer] == [spell(event) for event in captured]


@pytest.mark.parametrize("capture", LANES)
def test_a_whole_native_reply_has_sglangs_fields(server: EmbeddedServer, capture: str) -> None:
    path, body = read_request(f"{capture}.generate_nostream")
    url = address(server, capture) + path
    httpx.post(url, json=body)  # captured with a warm prefix cache
    answer = httpx.post(url, json=body).json()
    captured = json.loads((CAPTURES / f"{capture}.generate_nostream.json").read_text())
    assert spell(answer) == spell(captured)


@pytest.mark.parametrize("capture", LANES)
@pytest.mark.parametrize("name", ["chat_stream_meta_info_rejected", "chat_stream_token_ids_rejected"])
def test_what_sglang_refuses_is_refused_in_its_words(server: EmbeddedServer, capture: str, name: str) -> None:
    path, body = read_request(f"{capture}.{name}")
    response = httpx.post(address(server, capture) + path, json=body)
    assert response.status_code == 400
    assert spell(response.json()) == spell(json.loads((CAPTURES / f"{capture}.{name}.sse").read_text()))
