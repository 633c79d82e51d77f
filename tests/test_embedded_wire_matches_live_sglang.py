"""A real SGLang 0.5.23 with the chain models and the embedded server with their closed form, asked the same."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from backend.embedded.server import EmbeddedServer
from tests.closed_form_engine import ClosedFormEngine
from tests.wire import merge_like, spell, split_events

Json = dict[str, Any]
WAIT = 120.0  # seconds for one answer of a server that shares two cores

STREAM: Json = {"model": "m", "temperature": 0, "stream": True, "max_tokens": 20}
DETAILS: Json = {
    "return_token_ids": True,
    "return_spec_tokens_details": True,
    "return_cached_tokens_details": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}
COMPLETION: Json = {**STREAM, **DETAILS, "prompt": [9]}
CHAT: Json = {"model": "m", "temperature": 0, "max_tokens": 9, "messages": [{"role": "user", "content": "w7 w8"}]}


def generate(stream: bool = True, **params: object) -> Json:
    sampling = {"temperature": 0, "max_new_tokens": 20, **params}
    return {"input_ids": [9], "stream": stream, "sampling_params": sampling}


CASES: dict[str, tuple[str, Json]] = {
    "length": ("/v1/completions", COMPLETION),
    "one token": ("/v1/completions", {**COMPLETION, "max_tokens": 1}),
    "text prompt": ("/v1/completions", {**COMPLETION, "prompt": "w3 w4 other"}),
    "stop string": ("/v1/completions", {**COMPLETION, "stop": ["w14 w15"]}),
    "stop string kept": ("/v1/completions", {**COMPLETION, "stop": "w14", "no_stop_trim": True}),
    "stop string that only begins": ("/v1/completions", {**COMPLETION, "stop": ["w16 w99", "w12 w99"]}),
    "stop token": ("/v1/completions", {**COMPLETION, "stop_token_ids": [13]}),
    "stop token at the last place": ("/v1/completions", {**COMPLETION, "stop_token_ids": [29]}),
    "stop token behind the length": ("/v1/completions", {**COMPLETION, "stop_token_ids": [30]}),
    "stop string and token in one step": ("/v1/completions", {**COMPLETION, "stop": "w14", "stop_token_ids": [13]}),
    "eos": ("/v1/completions", {**COMPLETION, "prompt": [1019]}),
    "eos shown": ("/v1/completions", {**COMPLETION, "prompt": [1019], "skip_special_tokens": False}),
    "eos kept": ("/v1/completions", {**COMPLETION, "prompt": [1019], "no_stop_trim": True}),
    "eos ignored": ("/v1/completions", {**COMPLETION, "prompt": [1019], "ignore_eos": True}),
    "whole completion": ("/v1/completions", {**COMPLETION, "stream": False, "stream_options": None}),
    "whole eos": ("/v1/completions", {**COMPLETION, "prompt": [1019], "stream": False, "stream_options": None}),
    "chat": ("/v1/chat/completions", CHAT),
    "chat with ids": ("/v1/chat/completions", {**CHAT, "return_token_ids": True, "return_meta_info": True}),
    "chat stream": ("/v1/chat/completions", {**CHAT, "stream": True, "return_spec_tokens_details": True}),
    "chat stream with ids": (
        "/v1/chat/completions",
        {**CHAT, "stream": True, "return_input_ids_in_sglext": True, "return_output_ids_in_sglext": True},
    ),
    "chat stream to eos": (
        "/v1/chat/completions",
        {**CHAT, "stream": True, "messages": [{"role": "user", "content": [{"type": "text", "text": "w1019"}]}]},
    ),
    "chat continued": (
        "/v1/chat/completions",
        {
            **CHAT,
            "messages": [*CHAT["messages"], {"role": "assistant", "content": "w9"}],
            "continue_final_message": True,
        },
    ),
    "generate": ("/generate", generate()),
    "generate to a stop": ("/generate", generate(stop=["w14"])),
    "generate to a stop token": ("/generate", generate(stop_token_ids=[13])),
    "whole generate": ("/generate", generate(stream=False)),
    "whole generate of one token": ("/generate", generate(stream=False, max_new_tokens=1)),
    "tokenize": ("/tokenize", {"prompt": "w5 w6"}),
    "tokenize a list": ("/tokenize", {"prompt": ["w5", "w6 w7"]}),
    "tokenize messages": ("/tokenize", {"messages": CHAT["messages"]}),
    "tokenize bare messages": ("/tokenize", {"messages": CHAT["messages"], "add_generation_prompt": False}),
    "detokenize": ("/detokenize", {"tokens": [5, 6, 1023]}),
    "detokenize specials": ("/detokenize", {"tokens": [5, 6, 1023], "skip_special_tokens": False}),
    "detokenize lists": ("/detokenize", {"tokens": [[5], [6, 7]]}),
    "detokenize nothing": ("/detokenize", {"tokens": []}),
    "empty prompt": ("/v1/completions", {**COMPLETION, "prompt": ""}),
    "streamed chat ids": ("/v1/chat/completions", {**CHAT, "stream": True, "return_token_ids": True}),
}


@pytest.fixture(scope="module")
def embedded() -> Iterator[EmbeddedServer]:
    with EmbeddedServer.bind(ClosedFormEngine()) as server:
        yield server


def ask(url: str, path: str, body: Json) -> tuple[int, list[Any]]:
    """Status and events of a stream, or status and the one body, from a cold prefix cache."""
    httpx.post(url + "/flush_cache", params={"timeout": 30}, timeout=WAIT).raise_for_status()
    response = httpx.post(url + path, json=body, timeout=WAIT)
    if response.headers["content-type"].startswith("text/event-stream"):
        return response.status_code, split_events(response.text)
    return response.status_code, [response.json()]


def compare(own: tuple[int, list[Any]], real: tuple[int, list[Any]], *, cumulative: bool) -> None:
    assert own[0] == real[0]
    events = own[1]
    if not cumulative:
        events = merge_like(events, real[1])
    elif len(events) > len(real[1]):  # what SGLang skips of a cumulative stream comes with the next event
        known = {spell(event) for event in real[1]}
        events = [event for event in events if spell(event) in known]
    assert [spell(event) for event in events] == [spell(event) for event in real[1]]


@pytest.mark.parametrize("case", CASES)
def test_the_eagle_address_answers_like_sglang_with_eagle3(
    chain_eagle3_server: str, embedded: EmbeddedServer, case: str
) -> None:
    path, body = CASES[case]
    compare(ask(embedded.eagle.url, path, body), ask(chain_eagle3_server, path, body), cumulative=path == "/generate")


@pytest.mark.parametrize("case", CASES)
def test_the_baseline_address_answers_like_sglang_without_speculation(
    chain_baseline_server: str, embedded: EmbeddedServer, case: str
) -> None:
    path, body = CASES[case]
    compare(
        ask(embedded.baseline.url, path, body), ask(chain_baseline_server, path, body), cumulative=path == "/generate"
    )


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {**COMPLETION, "temperature": -1}),
        ("/v1/completions", {**COMPLETION, "top_p": 0}),
        ("/v1/completions", {**COMPLETION, "max_tokens": 0}),
        ("/v1/completions", {**COMPLETION, "temperature": "hot"}),
        ("/v1/completions", {**COMPLETION, "prompt": [9] * 5000}),
        ("/v1/completions", {**COMPLETION, "prompt": [9] * 4000, "max_tokens": 1000}),
        ("/v1/completions", {"model": "m"}),
        ("/v1/chat/completions", {**CHAT, "messages": []}),
        ("/generate", {"input_ids": [9], "sampling_params": {"max_tokens": 5}}),
        ("/tokenize", {}),
    ],
)
def test_what_sglang_refuses_is_refused_with_the_same_status_and_keys(
    chain_eagle3_server: str, embedded: EmbeddedServer, path: str, body: Json
) -> None:
    body = {**body, "stream": False}
    own_status, (own,) = ask(embedded.eagle.url, path, body)
    real_status, (real,) = ask(chain_eagle3_server, path, body)
    assert own_status == real_status
    assert list(own) == list(real)


@pytest.mark.parametrize("path", ["/server_info", "/model_info", "/v1/models"])
def test_every_fact_goes_by_sglangs_name(chain_eagle3_server: str, embedded: EmbeddedServer, path: str) -> None:
    own, real = (httpx.get(url + path, timeout=WAIT).json() for url in (embedded.eagle.url, chain_eagle3_server))
    assert set(own) - set(real) <= {"eaglelens"}
    if path == "/server_info":
        assert set(own["internal_states"][0]) <= set(real["internal_states"][0])
        for name in ("speculative_algorithm", "speculative_num_steps", "speculative_eagle_topk"):
            assert own[name] == real[name]
        assert own["speculative_num_draft_tokens"] == real["speculative_num_draft_tokens"]
        assert json.dumps(own["stream_interval"]) == json.dumps(real["stream_interval"])


def test_the_load_goes_by_sglangs_names(chain_eagle3_server: str, embedded: EmbeddedServer) -> None:
    own, real = (httpx.get(url + "/v1/loads", timeout=WAIT).json() for url in (embedded.eagle.url, chain_eagle3_server))
    assert list(own) == list(real)
    assert set(own["loads"][0]) <= set(real["loads"][0]) | {"speculative"}


def abort_once_it_streams(url: str, path: str, body: Json, *, named: str | None = None) -> Any:
    """The event that ends a stream after an abort of the id `named`, by default its own.

    The id is new each time: SGLang aborts the id of a finished stream again two seconds later.
    """
    rid = uuid.uuid4().hex
    with (
        httpx.Client(timeout=WAIT) as client,
        client.stream("POST", url + path, json={**body, "stream": True, "rid": rid}) as response,
    ):
        lines = response.iter_lines()
        first = next(lines)
        client.post(url + "/abort_request", json={"rid": named or rid}).raise_for_status()
        events = split_events("\n".join((first, *lines)))
    return [event for event in events if event != "[DONE]"][-1]


@pytest.fixture(scope="module")
def unhurried() -> Iterator[EmbeddedServer]:
    """Slow enough for an abort to arrive before the last token, however busy the machine is."""
    with EmbeddedServer.bind(ClosedFormEngine(before_step=lambda: time.sleep(0.01))) as server:
        yield server


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", generate(max_new_tokens=3800, ignore_eos=True)),
        ("/v1/completions", {**STREAM, "prompt": [9], "max_tokens": 3800, "ignore_eos": True}),
    ],
)
def test_an_abort_ends_a_stream_like_sglangs(
    chain_eagle3_server: str, unhurried: EmbeddedServer, path: str, body: Json
) -> None:
    own, real = (abort_once_it_streams(url, path, body) for url in (unhurried.eagle.url, chain_eagle3_server))
    if path == "/generate":
        assert list(own["meta_info"]) == list(real["meta_info"])
        assert own["meta_info"]["finish_reason"] == real["meta_info"]["finish_reason"]
    else:
        own_choice, real_choice = own["choices"][0], real["choices"][0]
        assert own_choice["finish_reason"] == real_choice["finish_reason"] == "abort"
        assert set(own_choice) - {"eaglelens"} == set(real_choice)


def test_an_abort_of_an_unknown_id_ends_nothing(chain_eagle3_server: str, unhurried: EmbeddedServer) -> None:
    for url in (unhurried.eagle.url, chain_eagle3_server):
        last = abort_once_it_streams(url, "/v1/completions", {**STREAM, "prompt": [9], "max_tokens": 400}, named="0x")
        assert last["choices"][0]["finish_reason"] == "length"
