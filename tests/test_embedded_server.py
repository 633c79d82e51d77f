"""The endpoints of the embedded server over a real socket: what they answer, and what they refuse and how."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from backend.embedded.server import EmbeddedServer
from tests.closed_form_engine import EOS_ID, ClosedFormEngine

Json = dict[str, Any]


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer.bind(ClosedFormEngine()) as running:
        yield running


def post(server: EmbeddedServer, path: str, **body: object) -> httpx.Response:
    return httpx.post(server.eagle.url + path, json=body)


def stream_events(response: httpx.Response) -> list[Json]:
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def complete(server: EmbeddedServer, **body: object) -> list[Json]:
    asked = {"prompt": [9], "temperature": 0, "stream": True, "return_token_ids": True, **body}
    return stream_events(post(server, "/v1/completions", **asked))


def ids_per_chunk(events: list[Json]) -> list[list[int]]:
    return [event["choices"][0]["token_ids"] for event in events if event["choices"]]


def join(parts: list[list[int]]) -> list[int]:
    return [token for part in parts for token in part]


def test_the_openai_client_reads_a_stream(server: EmbeddedServer) -> None:
    client = openai.OpenAI(base_url=server.eagle.url + "/v1", api_key="none", max_retries=0)
    chunks = list(
        client.completions.create(
            model="chain",
            prompt=[9],
            stream=True,
            temperature=0,
            max_tokens=20,
            stream_options={"include_usage": True},
            extra_body={"return_token_ids": True, "return_spec_tokens_details": True, "rid": "mine"},
        )
    )
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices).split() == [
        f"w{n}" for n in range(10, 30)
    ]
    assert {chunk.id for chunk in chunks} == {"mine"}
    details = [chunk.model_extra["sglext"] for chunk in chunks if chunk.model_extra and "sglext" in chunk.model_extra]
    assert [detail["spec_tokens_details"]["spec_verify_ct"] for detail in details] == [8]
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 20


def test_the_openai_client_chats(server: EmbeddedServer) -> None:
    client = openai.OpenAI(base_url=server.eagle.url + "/v1", api_key="none", max_retries=0)
    reply = client.chat.completions.create(
        model="chain", messages=[{"role": "user", "content": "w7"}], temperature=0, max_tokens=3
    )
    assert reply.choices[0].message.content == " w8 w9 w10"
    assert reply.choices[0].finish_reason == "length"


def test_each_chunk_tells_what_was_drafted_for_it(server: EmbeddedServer) -> None:
    events = complete(server, max_tokens=6)
    assert [event["choices"][0]["eaglelens"] for event in events] == [
        {"proposed": []},
        {"proposed": [10, 10, 10]},
        {"proposed": [12, 13, 14]},
    ]


def test_the_number_of_drafts_can_be_chosen_per_request(server: EmbeddedServer) -> None:
    events = complete(server, max_tokens=11, eaglelens={"num_steps": 1}, return_spec_tokens_details=True)
    assert ids_per_chunk(events) == [[10], [11], [12, 13], [14, 15], [16], [17, 18], [19, 20]]
    assert events[-1]["sglext"]["spec_tokens_details"]["spec_num_proposed_drafts"] == 6


def test_no_drafts_is_plain_decoding(server: EmbeddedServer) -> None:
    events = complete(server, max_tokens=5, eaglelens={"num_steps": 0}, return_spec_tokens_details=True)
    assert ids_per_chunk(events) == [[10], [11], [12], [13], [14]]
    assert "sglext" not in events[-1]


def test_the_baseline_address_gives_the_same_tokens_one_by_one(server: EmbeddedServer) -> None:
    body = {"prompt": [9], "temperature": 0, "stream": True, "return_token_ids": True, "max_tokens": 20}
    events = stream_events(httpx.post(server.baseline.url + "/v1/completions", json=body))
    assert ids_per_chunk(events) == [[token] for token in range(10, 30)]
    assert "eaglelens" not in events[0]["choices"][0]


def test_the_eos_token_counts_but_has_no_text(server: EmbeddedServer) -> None:
    events = complete(server, prompt=[1019], max_tokens=20, stream_options={"include_usage": True})
    assert join(ids_per_chunk(events)) == [1020, 1021, 1022, EOS_ID]
    assert "".join(event["choices"][0]["text"] for event in events if event["choices"]) == " w1020 w1021 w1022"
    finish = events[-2]["choices"][0]
    assert (finish["finish_reason"], finish["matched_stop"]) == ("stop", EOS_ID)
    assert events[-1]["usage"]["completion_tokens"] == 4


def test_eos_can_be_ignored(server: EmbeddedServer) -> None:
    events = complete(server, prompt=[1020], max_tokens=5, ignore_eos=True)
    assert join(ids_per_chunk(events)) == [1021, 1022, 1023, 0, 1]


def test_a_stop_token_inside_a_step_cuts_it(server: EmbeddedServer) -> None:
    events = complete(server, stop_token_ids=[13], max_tokens=20, return_spec_tokens_details=True)
    assert ids_per_chunk(events) == [[10], [11], [12, 13]]
    details = events[-1]["sglext"]["spec_tokens_details"]
    assert (details["spec_verify_ct"], details["spec_num_correct_drafts"]) == (2, 3)


def test_a_stop_string_is_not_in_the_text(server: EmbeddedServer) -> None:
    events = complete(server, stop=["w14 w15"], max_tokens=20)
    assert "".join(event["choices"][0]["text"] for event in events) == " w10 w11 w12 w13 "
    assert events[-1]["choices"][0]["matched_stop"] == "w14 w15"
    assert join(ids_per_chunk(events)) == [10, 11, 12, 13, 14, 15]


def test_a_seed_makes_a_sampled_reply_repeatable(server: EmbeddedServer) -> None:
    def sample(seed: int) -> list[int]:
        return join(ids_per_chunk(complete(server, temperature=1, seed=seed, max_tokens=40)))

    assert sample(7) == sample(7)
    assert sample(7) != sample(8)


def test_a_whole_completion_carries_ids_and_counters(server: EmbeddedServer) -> None:
    answer = post(
        server,
        "/v1/completions",
        prompt=[9],
        temperature=0,
        max_tokens=6,
        return_token_ids=True,
        return_spec_tokens_details=True,
    ).json()
    assert answer["choices"][0]["token_ids"] == list(range(10, 16))
    assert answer["choices"][0]["prompt_token_ids"] == [9]
    assert answer["sglext"]["spec_tokens_details"]["spec_correct_drafts_histogram"] == [1, 0, 0, 1]
    assert answer["usage"]["total_tokens"] == 7


def test_a_chat_stream_gives_ids_at_its_end_where_asked(server: EmbeddedServer) -> None:
    body = {"messages": [{"role": "user", "content": "w9"}], "temperature": 0, "max_tokens": 3, "stream": True}
    events = stream_events(
        post(server, "/v1/chat/completions", **body, return_input_ids_in_sglext=True, return_output_ids_in_sglext=True)
    )
    assert events[-1]["sglext"] == {"input_ids": [9], "output_ids": [[10, 11, 12]]}


def test_a_chat_without_a_limit_fills_the_context_or_stops(server: EmbeddedServer) -> None:
    answer = post(server, "/v1/chat/completions", messages=[{"role": "user", "content": "w1000"}], temperature=0).json()
    assert answer["choices"][0]["matched_stop"] == EOS_ID


def test_tokenize_takes_text_lists_and_messages(server: EmbeddedServer) -> None:
    assert post(server, "/tokenize", prompt="w5 w6").json() == {"tokens": [5, 6], "count": 2, "max_model_len": 4096}
    assert post(server, "/tokenize", prompt=["w5", "w6 w7"]).json()["count"] == [1, 2]
    assert post(server, "/tokenize", messages=[{"role": "user", "content": "w5"}]).json()["tokens"] == [5]


def test_a_reply_can_be_continued_where_it_stands(server: EmbeddedServer) -> None:
    messages = [{"role": "user", "content": "w5"}, {"role": "assistant", "content": "w6"}]
    answer = post(server, "/tokenize", messages=messages, continue_final_message=True).json()
    assert answer["tokens"] == [5, 6]


def test_detokenize_takes_one_list_or_many(server: EmbeddedServer) -> None:
    assert post(server, "/detokenize", tokens=[5, 6, EOS_ID]).json() == {"text": "w5 w6"}
    assert post(server, "/detokenize", tokens=[[5], [6, 7]]).json() == {"text": ["w5", "w6 w7"]}
    assert post(server, "/detokenize", tokens=[EOS_ID], skip_special_tokens=False).json() == {"text": "</s>"}
    assert post(server, "/detokenize", tokens=[]).json() == {"text": ""}


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_server_info_tells_the_lanes_apart(server: EmbeddedServer, path: str) -> None:
    eagle, baseline = (httpx.get(url + path).json() for url in (server.eagle.url, server.baseline.url))
    assert eagle["speculative_algorithm"] == "EAGLE3"
    assert (eagle["speculative_num_steps"], eagle["speculative_num_draft_tokens"]) == (3, 4)
    assert baseline["speculative_algorithm"] is None and baseline["speculative_num_steps"] is None
    assert eagle["version"].startswith("0.5.23+")
    assert eagle["eaglelens"]["bit_exact"] is True
    assert (eagle["port"], baseline["port"]) == (server.eagle.port, server.baseline.port)


def test_facts_and_health_are_there(server: EmbeddedServer) -> None:
    def get(path: str) -> httpx.Response:
        return httpx.get(server.eagle.url + path)

    assert get("/model_info").json()["model_path"] == "chain"
    assert get("/v1/models").json()["data"][0]["id"] == "chain"
    assert get("/v1/models/chain").json()["max_model_len"] == 4096
    assert get("/v1/models/other").status_code == 404
    assert get("/health").status_code == 200
    load = get("/v1/loads").json()["loads"][0]
    assert (load["num_running_reqs"], load["num_waiting_reqs"]) == (0, 0)


def test_a_flushed_cache_is_empty(server: EmbeddedServer) -> None:
    ask = {"input_ids": [60, 61, 62, 63], "sampling_params": {"temperature": 0, "max_new_tokens": 2}}
    cached = []
    for path in ("/health", "/health", "/flush_cache?timeout=5"):
        assert httpx.get(server.eagle.url + path).status_code == 200
        cached.append(post(server, "/generate", **ask).json()["meta_info"]["cached_tokens"])
    assert cached == [0, 2, 0]


WRONG: list[tuple[str, Json, str]] = [
    ("/v1/completions", {}, "prompt: Field required"),
    ("/v1/completions", {"prompt": ""}, "Prompt cannot be empty"),
    ("/v1/completions", {"prompt": []}, "Prompt cannot be empty"),
    ("/v1/completions", {"prompt": 5}, "prompt: "),
    ("/v1/completions", {"prompt": [1, 5000]}, "Token id 5000 is outside the vocabulary"),
    ("/v1/completions", {"prompt": [-1]}, "Token id -1 is outside the vocabulary"),
    ("/v1/completions", {"prompt": ["w1", "w2"]}, "one prompt per request"),
    ("/v1/completions", {"prompt": [9] * 4096}, "longer than the model's context length (4096 tokens)"),
    ("/v1/completions", {"prompt": [9] * 4000, "max_tokens": 97}, "maximum context length of 4096 tokens"),
    ("/v1/completions", {"prompt": "w1", "temperature": -1}, "temperature must be a non-negative finite number"),
    ("/v1/completions", {"prompt": "w1", "temperature": "hot"}, "temperature: "),
    ("/v1/completions", {"prompt": "w1", "top_p": 0}, "top_p must be in (0, 1]"),
    ("/v1/completions", {"prompt": "w1", "max_tokens": 0}, "max_tokens must be positive"),
    ("/v1/completions", {"prompt": "w1", "n": 2}, "n = 2 is not supported"),
    ("/v1/completions", {"prompt": "w1", "echo": True}, "echo = True is not supported"),
    ("/v1/completions", {"prompt": "w1", "logprobs": 0}, "logprobs = 0 is not supported"),
    ("/v1/completions", {"prompt": "w1", "top_k": 5}, "top_k = 5 is not supported"),
    ("/v1/completions", {"prompt": "w1", "presence_penalty": 0.5}, "presence_penalty = 0.5 is not supported"),
    ("/v1/completions", {"prompt": "w1", "seed": 2**70}, "seed must be in"),
    ("/v1/completions", {"prompt": "w1", "stop": ["x"] * 17}, "stop may hold up to 16 strings"),
    ("/v1/completions", {"prompt": "w1", "eaglelens": {"num_steps": 8}}, "between 0 and 7, got 8"),
    ("/v1/completions", {"prompt": "w1", "eaglelens": {"steps": 1}}, "steps is not a known parameter"),
    ("/v1/chat/completions", {"messages": []}, "messages: "),
    ("/v1/chat/completions", {"messages": [{"content": "w1"}]}, "needs a role"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "text only"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "w1"}], "tools": [{}]}, "tools = "),
    ("/generate", {"text": "w1", "input_ids": [1]}, "Exactly one of text and input_ids"),
    ("/generate", {"text": "w1", "sampling_params": {"max_tokens": 5}}, "max_tokens is not a known parameter"),
    ("/generate", {"text": "w1", "return_logprob": True}, "return_logprob = True is not supported"),
    ("/tokenize", {}, "Exactly one of 'prompt' or 'messages'"),
    ("/tokenize", {"messages": []}, "at least one message"),
    ("/detokenize", {"tokens": [99999]}, "outside the vocabulary"),
    ("/detokenize", {"tokens": "w1"}, "tokens: "),
]


@pytest.mark.parametrize(("path", "body", "message"), WRONG)
def test_a_wrong_request_is_refused_with_what_to_change(
    server: EmbeddedServer, path: str, body: Json, message: str
) -> None:
    response = post(server, path, **body)
    assert response.status_code == 400
    error = response.json()
    text = error["error"]["message"] if path == "/generate" else error["message"]
    assert message in text
    assert "\n" not in text
    if path != "/generate":
        assert set(error) == {"object", "message", "type", "param", "code"}


@pytest.mark.parametrize("stream", [False, True])
def test_the_baseline_has_no_draft_to_ask_for(server: EmbeddedServer, stream: bool) -> None:
    body = {"prompt": "w1", "stream": stream, "eaglelens": {"num_steps": 2}}
    response = httpx.post(server.baseline.url + "/v1/completions", json=body)
    assert response.status_code == 400 and "baseline" in response.json()["message"]


@pytest.mark.parametrize(
    ("content", "headers"),
    [
        (b'{"prompt": "w1"}', {"content-type": "text/plain"}),
        (b"{", {"content-type": "application/json"}),
        (b"\xff\xfe\xfd", {"content-type": "application/json"}),
        (b"[1]", {"content-type": "application/json"}),
        (b'{"prompt": "\\ud800"}', {"content-type": "application/json"}),
        (b'{"prompt": "w1", "model": "\\ud800"}', {"content-type": "application/json"}),
        (b'{"prompt": "w1", "rid": "\\ud800"}', {"content-type": "application/json"}),
        (b"[" * 100_000, {"content-type": "application/json"}),
        (b'{"prompt": "' + b"w" * 5 * 2**20 + b'"}', {"content-type": "application/json"}),
    ],
)
def test_a_body_that_is_no_request_is_refused(server: EmbeddedServer, content: bytes, headers: dict[str, str]) -> None:
    response = httpx.post(server.eagle.url + "/v1/completions", content=content, headers=headers)
    assert response.status_code == 400
    assert response.json()["object"] == "error"


def test_an_unknown_path_or_method_is_told_in_json(server: EmbeddedServer) -> None:
    assert httpx.get(server.eagle.url + "/nothing").json()["code"] == 404
    assert httpx.get(server.eagle.url + "/v1/completions").json()["code"] == 405


def test_unknown_fields_are_ignored_as_by_sglang(server: EmbeddedServer) -> None:
    response = post(server, "/v1/completions", prompt="w1", max_tokens=1, user="me", some_new_field=5)
    assert response.status_code == 200
