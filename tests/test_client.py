"""One streamed request over a real socket: events, labels, pieces, times, stopping and every way it can fail."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from statistics import median

import pytest

from backend.client import read_lane, run_so_far, stream_run, tokenize_chat
from backend.errors import LaneError
from backend.events import Event, Exactness, Request, Run, RunEnded, RunStarted, Sampling, Source, TokensArrived
from backend.lanes import Lane
from tests.chunk_server import ChunkServer, Script

PATTERN = Script.from_steps([0, 3, 0, 3], 3, cut=1)
REQUEST = Request("r1", (7, 8, 9), Sampling(max_tokens=20))


async def collect(events: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in events]


async def complete(lane: Lane, request: Request = REQUEST, **options: float) -> Run:
    events = await collect(stream_run(lane, request, **options))  # type: ignore[arg-type]
    assert isinstance(events[0], RunStarted)
    assert isinstance(events[-1], RunEnded)
    run = events[-1].run
    arrived = [event for event in events if isinstance(event, TokensArrived)]
    assert [token.id for event in arrived for token in event.tokens] == [token.id for token in run.tokens]
    assert "".join(token.piece for event in arrived for token in event.tokens) == run.text
    return run


async def complete_on(server: ChunkServer, request: Request = REQUEST) -> Run:
    return await complete(await read_lane(server.url, "EAGLE-3"), request)


def letters(run: Run) -> str:
    return "".join(token.source.value[0] for token in run.tokens)


async def test_a_run_ends_exact_with_the_last_step_cut() -> None:
    with ChunkServer(PATTERN) as server:
        run = await complete_on(server)
    assert (run.exactness, letters(run)) == (Exactness.EXACT, "ftdddttddd")
    assert [token.piece for token in run.tokens] == [f" w{index}" for index in range(10, 20)]
    assert [token.step for token in run.tokens] == [0, 1, 2, 2, 2, 2, 3, 4, 4, 4]
    assert (run.finish_reason, run.error) == ("length", None)
    assert run.counters is not None and run.counters.histogram == (2, 0, 0, 2)


async def test_the_last_chunk_of_a_speculating_lane_comes_with_its_final_labels() -> None:
    with ChunkServer(PATTERN) as server:
        events = await collect(stream_run(await read_lane(server.url, "EAGLE-3"), REQUEST))
    last = events[-2]
    assert isinstance(last, TokensArrived)
    assert [token.source for token in last.tokens] == [Source.DRAFT] * 3


async def test_a_merged_chunk_makes_the_run_partial() -> None:
    with ChunkServer(Script.from_steps([3, 1, 0], 3, merges=[False, True, False])) as server:
        run = await complete_on(server)
    assert (run.exactness, letters(run)) == (Exactness.PARTIAL, "fuuuuutt")


async def test_accept_lengths_that_the_server_tells_settle_a_merged_chunk() -> None:
    script = Script.from_steps([3, 1, 0], 3, merges=[False, True, False])
    with ChunkServer(replace(script, accept_lengths=(3, 1, 0))) as server:
        run = await complete_on(server)
    assert (run.exactness, letters(run)) == (Exactness.EXACT, "fdddtdtt")


async def test_counters_that_disagree_make_every_label_uncertain() -> None:
    with ChunkServer(replace(PATTERN, spec={**(PATTERN.spec or {}), "spec_verify_ct": 5})) as server:
        run = await complete_on(server)
    assert run.exactness is Exactness.INCONSISTENT
    assert set(letters(run)) == {"u"}


async def test_a_baseline_is_all_target() -> None:
    with ChunkServer(Script((1, 2, 1)), num_steps=0) as server:
        run = await complete_on(server)
    assert (run.exactness, letters(run), run.num_steps) == (Exactness.EXACT, "fttt", 0)


async def test_every_sampling_value_is_sent() -> None:
    sampling = Sampling(0.7, 0.9, 33, seed=5, ignore_eos=True, stop_token_ids=(2,), num_steps=2)
    with ChunkServer(PATTERN) as server:
        await complete_on(server, Request("r7", (7, 8), sampling, cache_salt="s"))
        (body,) = server.asked("/v1/completions")
    assert body == {
        "model": "chunks",
        "prompt": [7, 8],
        "stream": True,
        "temperature": 0.7,
        "top_p": 0.9,
        "max_tokens": 33,
        "seed": 5,
        "ignore_eos": True,
        "stop_token_ids": [2],
        "cache_salt": "s",
        "rid": "r7",
        "return_token_ids": True,
        "return_spec_tokens_details": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


async def test_the_embedded_engine_is_told_the_draft_length_and_tells_its_proposals() -> None:
    script = replace(Script.from_steps([1, 0], 2), proposed=(None, (11, 99), (13, 14)))
    with ChunkServer(script, facts={"eaglelens": {"engine": "embedded"}}) as server:
        run = await complete_on(server, replace(REQUEST, sampling=Sampling(num_steps=2)))
        (body,) = server.asked("/v1/completions")
    assert body["eaglelens"] == {"num_steps": 2}
    assert (run.num_steps, run.exactness) == (2, Exactness.EXACT)
    assert [chunk.proposed for chunk in run.chunks] == [None, (11, 99), (13, 14)]


async def test_split_characters_go_to_the_token_that_completes_them() -> None:
    vocabulary = (b"a", b" the", b" ", b"\xf0\x9f", b"\xa6", b"\x85", b"\xe6\x97", b"\xa5", b" end")
    ids = (1, 2, 3, 4, 5, 6, 7, 8)
    with ChunkServer(Script((1, 1, 2, 1, 1, 1, 1), ids=ids), num_steps=0, vocabulary=vocabulary) as server:
        run = await complete_on(server)
        assert len(server.asked("/detokenize")[-1]["tokens"]) < 2 * len(ids)
    assert [token.piece for token in run.tokens] == [" the", " ", "", "", "🦅", "", "日", " end"]
    assert run.text == " the 🦅日 end"


async def test_plain_text_costs_no_request_behind_the_stream() -> None:
    with ChunkServer(PATTERN) as server:
        lane = await read_lane(server.url, "EAGLE-3")
        server.requests.clear()
        await complete(lane)
        assert [path for path, _ in server.requests] == ["/v1/completions"]


async def test_without_detokenize_the_pieces_still_join_to_the_text() -> None:
    with ChunkServer(PATTERN, missing=frozenset({"/detokenize"})) as server:
        run = await complete_on(server)
    assert run.text == "".join(f" w{index}" for index in range(10, 20))


async def test_an_older_server_is_read_through_generate() -> None:
    old = {
        "spec_accept_rate": 0.5,
        "spec_accept_length": 2.5,
        "spec_verify_ct": 4,
        "spec_accept_token_num": 6,
        "spec_draft_token_num": 12,
    }
    with ChunkServer(replace(PATTERN, spec=old), version="0.5.6.post2") as server:
        run = await complete_on(server)
        (body,) = server.asked("/generate")
    assert (run.exactness, letters(run)) == (Exactness.EXACT, "ftdddttddd")
    assert [token.piece for token in run.tokens] == [f" w{index}" for index in range(10, 20)]
    assert run.counters is not None and (run.counters.accepted, run.counters.cached_tokens) == (6, 0)
    assert body["input_ids"] == [7, 8, 9]
    assert body["sampling_params"]["max_new_tokens"] == 20


async def test_a_retraction_that_generate_tells_is_counted() -> None:
    script = replace(Script.from_steps([0, 3, 0], 3), retractions=1)
    with ChunkServer(replace(script, sizes=(1, 1, 4, 1, 1)), version="0.5.6") as server:
        lane = await read_lane(server.url, "EAGLE-3")
        server.script = replace(server.script, spec={**(script.spec or {}), "spec_accept_length": 8 / 3})
        run = await complete(lane)
    assert (run.exactness, letters(run)) == (Exactness.EXACT, "ftdddttt")
    assert run.counters is not None and run.counters.retractions == 1


async def test_a_server_that_sends_no_ids_is_still_counted_right() -> None:
    with ChunkServer(replace(PATTERN, with_ids=False)) as server:
        run = await complete_on(server)
    assert (run.exactness, letters(run)) == (Exactness.EXACT, "ftdddttddd")
    assert run.text == "".join(f" w{index}" for index in range(10, 20))


async def test_arrival_times_are_those_of_the_wire_however_slow_the_consumer() -> None:
    with ChunkServer(Script.plain(40, interval=0.02), num_steps=0) as server:
        lane = await read_lane(server.url, "Baseline")
        run = None
        async for event in stream_run(lane, REQUEST):
            time.sleep(0.03)  # what a page that renders on the same loop does
            run = event.run if isinstance(event, RunEnded) else None
        sent = server.sent_at[:40]
    assert run is not None
    delays = [
        (token.arrived - run.tokens[0].arrived) - (moment - sent[0])
        for token, moment in zip(run.tokens, sent, strict=True)
    ]
    assert median(abs(delay) for delay in delays) < 0.015
    assert run.tokens[-1].arrived - run.tokens[0].arrived < 0.03 * 39


async def test_a_stop_keeps_what_came_and_takes_the_counters_of_the_abort() -> None:
    with ChunkServer(Script.from_steps([3] * 100, 3, interval=0.03)) as server:
        lane = await read_lane(server.url, "EAGLE-3")
        stop, run = asyncio.Event(), None
        async for event in stream_run(lane, REQUEST, stop=stop):
            if isinstance(event, TokensArrived) and event.first_index > 4:
                stop.set()
            run = event.run if isinstance(event, RunEnded) else None
        assert server.aborted == {"r1"}
    assert run is not None and run.error is None
    assert (run.finish_reason, run.exactness) == ("abort", Exactness.EXACT)
    assert 9 <= len(run.tokens) < 60


async def test_a_stop_without_an_answer_leaves_the_run_provisional() -> None:
    script = Script.from_steps([3] * 5, 3, fault="hang", fault_after=3)
    with ChunkServer(script) as server:
        lane = await read_lane(server.url, "EAGLE-3")
        stop, run = asyncio.Event(), None
        began = time.monotonic()
        async for event in stream_run(lane, REQUEST, stop=stop):
            if isinstance(event, TokensArrived) and event.first_index > 4:
                stop.set()
            run = event.run if isinstance(event, RunEnded) else None
        assert time.monotonic() - began < 5
    assert run is not None and run.error is None
    assert (run.finish_reason, run.exactness, letters(run)) == (None, Exactness.PROVISIONAL, "fdddtdddt")


async def wait_for_abort(server: ChunkServer) -> None:
    for _ in range(100):
        if server.aborted:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("no abort came")


async def test_closing_the_stream_aborts_the_request_and_its_events_make_a_run() -> None:
    with ChunkServer(Script.from_steps([3] * 100, 3, interval=0.03)) as server:
        lane = await read_lane(server.url, "EAGLE-3")
        seen: list[Event] = []
        async with aclosing(stream_run(lane, REQUEST)) as events:
            async for event in events:
                seen.append(event)
                if len(seen) == 3:
                    break
        await wait_for_abort(server)
    started, *arrived = seen
    assert isinstance(started, RunStarted)
    run = run_so_far(started, [event for event in arrived if isinstance(event, TokensArrived)])
    assert (run.exactness, letters(run)) == (Exactness.PROVISIONAL, "fdddt")


async def test_cancelling_the_consumer_aborts_the_request() -> None:
    with ChunkServer(Script.from_steps([3] * 100, 3, interval=0.03)) as server:
        task = asyncio.create_task(collect(stream_run(await read_lane(server.url, "EAGLE-3"), REQUEST)))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await wait_for_abort(server)


async def test_a_server_that_breaks_off_leaves_the_text_and_a_remedy() -> None:
    with ChunkServer(replace(PATTERN, fault="break", fault_after=3)) as server:
        run = await complete_on(server)
    assert (run.text, run.exactness) == (" w10 w11 w12 w13 w14 w15", Exactness.PROVISIONAL)
    assert run.error is not None and "restart it" in run.error


async def test_an_error_in_the_stream_is_told_in_the_servers_words() -> None:
    with ChunkServer(replace(PATTERN, fault="error", fault_after=2)) as server:
        run = await complete_on(server)
    assert run.error is not None and "The engine ran out of memory" in run.error
    assert run.text == " w10 w11"


async def test_a_server_that_falls_silent_is_given_up_and_aborted() -> None:
    with ChunkServer(replace(PATTERN, fault="hang", fault_after=2)) as server:
        run = await complete(await read_lane(server.url, "EAGLE-3"), timeout=0.5)
        await wait_for_abort(server)
    assert run.error is not None and "silent" in run.error
    assert run.text == " w10 w11"


async def test_a_dead_server_is_said_and_comes_back() -> None:
    with ChunkServer(PATTERN) as server:
        lane = await read_lane(server.url, "EAGLE-3")
    run = await complete(lane)
    assert run.error == f"EAGLE-3 at {lane.base_url} does not answer. Start it, or check the address."
    assert (run.tokens, run.exactness) == ((), Exactness.PROVISIONAL)
    with ChunkServer(PATTERN) as server:
        assert (await complete(replace(lane, base_url=server.url))).error is None


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (400, {"message": "The input (9 tokens) is longer than the model's context length (4 tokens)."}, "Shorten"),
        (400, {"error": {"message": "top_p must be in (0, 1]."}}, "top_p must be in"),
        (401, {"error": "Unauthorized"}, "API key"),
        (404, {"detail": "Not Found"}, "SGLang server"),
        (429, {"message": "The queue is full."}, "Wait"),
        (500, "boom", "restart"),
        (503, None, "Wait"),
    ],
)
async def test_a_refusal_is_one_sentence_with_the_remedy(status: int, body: object, said: str) -> None:
    with ChunkServer(PATTERN, refusal=(status, body)) as server:
        run = await complete_on(server)
        assert len(server.asked("/v1/completions")) == 1
    assert run.error is not None and said in run.error


async def test_the_key_is_sent_and_asked_for() -> None:
    with ChunkServer(PATTERN, api_key="secret") as server:
        with pytest.raises(LaneError, match="API key"):
            await read_lane(server.url, "EAGLE-3")
        lane = await read_lane(server.url, "EAGLE-3", api_key="secret")
        assert (await complete(lane)).error is None
        assert "secret" not in repr(lane)


async def test_many_streams_at_once_do_not_wait_for_each_other() -> None:
    with ChunkServer(Script.plain(30, interval=0.02), num_steps=0) as server:
        lane = await read_lane(server.url, "Baseline")
        began = time.monotonic()
        runs = await asyncio.gather(*(complete(lane, replace(REQUEST, rid=f"many {i}")) for i in range(8)))
        assert time.monotonic() - began < 4 * 0.6
    assert all(len(run.tokens) == 30 for run in runs)


async def test_ten_thousand_tokens_arrive_complete_and_exact() -> None:
    script = Script.from_steps([1, 3, 3, 2] * 769, 3)
    with ChunkServer(script) as server:
        run = await complete_on(server)
    assert run.exactness is Exactness.EXACT
    assert len(run.tokens) == sum(script.sizes) > 9_990
    assert run.counters is not None and run.counters.completion_tokens == len(run.tokens)


async def test_a_conversation_becomes_prompt_ids() -> None:
    with ChunkServer(PATTERN) as server:
        lane = await read_lane(server.url, "EAGLE-3")
        ids = await tokenize_chat(lane, [{"role": "user", "content": "hi"}], {"enable_thinking": False})
        (body,) = server.asked("/tokenize")
    assert ids == (1, 2, 3)
    assert body["messages"] == [{"role": "user", "content": "hi"}]
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
