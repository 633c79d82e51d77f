"""What a server says of itself becomes a lane, and what may mislead becomes a warning."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest

from backend.client import read_lane, read_vocabulary
from backend.errors import LaneError
from backend.lanes import Lane, hide_secrets, lane_from_facts, normalise_url, parse_version
from tests.chunk_server import ChunkServer, Script

CAPTURED = json.loads((Path(__file__).parent / "captures" / "server_info.json").read_text())
SCRIPT = Script.plain(1)


def make_lane(**facts: object) -> Lane:
    return lane_from_facts("EAGLE-3", "http://host:1", {**CAPTURED, "speculative_eagle_topk": 1, **facts}, {})


def test_a_real_servers_facts_are_read() -> None:
    lane = lane_from_facts("Tree", "http://host:1/v1/", CAPTURED, {"data": [{"id": "chain", "max_model_len": 2048}]})
    assert (lane.base_url, lane.model, lane.version, lane.max_model_len) == ("http://host:1", "chain", "0.5.23", 2048)
    assert (lane.algorithm, lane.num_steps, lane.topk, lane.num_draft_tokens) == ("EAGLE3", 3, 2, 6)
    assert lane.drafts_per_step == 5
    assert lane.is_speculative and lane.speaks_completions and lane.ids_are_deltas and not lane.is_embedded
    assert lane.facts["decode_attention_backend"] == "intel_amx"
    assert lane.warnings == ()
    assert deepcopy(lane) == lane


def test_a_server_without_speculation_is_a_baseline() -> None:
    lane = make_lane(speculative_algorithm=None)
    assert (lane.num_steps, lane.is_speculative, lane.num_draft_tokens) == (0, False, None)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"stream_interval": 4}, "--stream-interval 1"),
        ({"launch_command": "SGLANG_SIMULATE_ACC_LEN=3.5 sglang serve"}, "not real"),
        ({"environment": {"SGLANG_SIMULATE_ACC_LEN": "2"}}, "not real"),
        ({"speculative_adaptive": True}, "--speculative-adaptive"),
        ({"enable_mixed_chunk": True}, "--enable-mixed-chunk"),
        ({"speculative_algorithm": "NGRAM"}, "not EAGLE-3"),
        ({"version": "0.5.6.post2"}, "/generate"),
    ],
)
def test_what_may_mislead_is_said(facts: dict[str, object], said: str) -> None:
    (warning,) = make_lane(**facts).warnings
    assert said in warning


def test_keys_in_a_launch_command_are_hidden() -> None:
    command = "python -m sglang.launch_server --api-key s3cret --admin-api-key=other --max-total-tokens 4096"
    lane = lane_from_facts("EAGLE-3", "http://x", {"launch_command": command}, {})
    assert lane.facts["launch_command"] == (
        "python -m sglang.launch_server --api-key *** --admin-api-key=*** --max-total-tokens 4096"
    )


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("{'api_key': 's3 cret', 'admin_api_key': None}", "{'api_key': ***, 'admin_api_key': None}"),
        ("ServerArgs(tp_size=1, api_key='s3cret', port=1)", "ServerArgs(tp_size=1, api_key=***, port=1)"),
        ("sglang serve --ssl-keyfile-password 's3 cret' --port 1", "sglang serve --ssl-keyfile-password *** --port 1"),
        ("the api_key is asked for; --tokenizer-path secret", "the api_key is asked for; --tokenizer-path secret"),
    ],
)
def test_keys_in_a_line_of_a_log_are_hidden(line: str, shown: str) -> None:
    assert hide_secrets(line) == shown


def test_a_simulated_acceptance_is_kept_as_a_number() -> None:
    assert make_lane(launch_command="SGLANG_SIMULATE_ACC_LEN=3.5 sglang serve").simulated_acceptance == 3.5
    assert make_lane(environment={"SGLANG_SIMULATE_ACC_LEN": "-1"}).simulated_acceptance is None


@pytest.mark.parametrize(
    ("version", "speaks"),
    [
        ("0.5.6", False),
        ("0.5.18.post1", False),
        ("0.5.19", True),
        ("0.5.23+eaglelens", True),
        (None, True),
        ("x", True),
    ],
)
def test_the_version_chooses_the_interface(version: str | None, speaks: bool) -> None:
    assert Lane("a", "http://host", "m", version=version).speaks_completions is speaks


def test_a_version_is_its_leading_numbers() -> None:
    assert parse_version("0.5.6.post2") == (0, 5, 6)
    assert parse_version("nightly") is None


@pytest.mark.parametrize(
    "url", ["http://host:1", "host:1", " http://host:1/ ", "http://host:1/v1", "http://host:1/v1/"]
)
def test_an_address_may_be_written_in_many_ways(url: str) -> None:
    assert normalise_url(url) == "http://host:1"


async def test_a_router_that_hides_the_settings_is_still_a_lane() -> None:
    with ChunkServer(SCRIPT, missing=frozenset({"/server_info", "/get_server_info"})) as server:
        lane = await read_lane(server.url, "Routed")
    assert (lane.model, lane.num_steps, lane.version) == ("chunks", 0, None)
    assert "does not tell whether it speculates" in lane.warnings[0]


async def test_something_else_at_the_address_is_no_lane() -> None:
    hidden = frozenset({"/server_info", "/get_server_info", "/v1/models"})
    with ChunkServer(SCRIPT, missing=hidden) as server, pytest.raises(LaneError, match="SGLang server"):
        await read_lane(server.url, "Other")


async def test_nothing_at_the_address_is_said_with_the_address() -> None:
    with pytest.raises(LaneError, match=r"127\.0\.0\.1:9 does not answer"):
        await read_lane("127.0.0.1:9", "EAGLE-3")


async def test_a_word_that_is_no_address_is_said() -> None:
    with pytest.raises(LaneError, match="is not an address"):
        await read_lane("ftp://host", "EAGLE-3")


async def test_the_vocabulary_is_every_tokens_text_behind_other_text() -> None:
    words = (*(bytes([at]) for at in range(128)), *(f" w{at}".encode() for at in range(5000)))
    with ChunkServer(SCRIPT, vocabulary=words) as server:
        lane = await read_lane(server.url, "EAGLE-3")
    assert lane.vocabulary == tuple(word.decode() for word in words)


async def test_a_server_that_cannot_decode_has_no_vocabulary() -> None:
    with ChunkServer(SCRIPT, missing=frozenset({"/detokenize"})) as server:
        lane = await read_lane(server.url, "EAGLE-3", with_vocabulary=False)
        assert lane.vocabulary == ()
        assert await read_vocabulary(lane) == ()
    assert await read_vocabulary(replace(lane, base_url="http://127.0.0.1:9")) == ()
