"""The client against a real SGLang 0.5.23 whose every token is known: labels, cut, pieces, stop and vocabulary."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from uuid import uuid4

import httpx
import pytest

from backend import metrics
from backend.attribution import find_cut
from backend.client import detokenize, flush_cache, read_lane, stream_run, tokenize_chat
from backend.events import Exactness, Request, Run, RunEnded, Sampling, Source, TokensArrived
from backend.lanes import Lane

pytestmark = pytest.mark.heavy
PROMPT = (7, 8, 9)


@pytest.fixture
async def eagle(chain_eagle3_server: str) -> Lane:
    return await read_lane(chain_eagle3_server, "EAGLE-3")


@pytest.fixture
async def baseline(chain_baseline_server: str) -> Lane:
    return await read_lane(chain_baseline_server, "Baseline")


async def complete(lane: Lane, max_tokens: int = 20) -> Run:
    request = Request(uuid4().hex, PROMPT, Sampling(max_tokens=max_tokens, ignore_eos=True))
    events = [event async for event in stream_run(lane, request)]
    assert isinstance(events[-1], RunEnded)
    run = events[-1].run
    assert run.error is None
    live = [token.piece for event in events if isinstance(event, TokensArrived) for token in event.tokens]
    assert "".join(live) == run.text == "".join(chunk.text for chunk in run.chunks)
    return run


async def count_running(lane: Lane) -> int:
    async with httpx.AsyncClient() as client:
        loads = (await client.get(f"{lane.base_url}/v1/loads")).json()["loads"]
    return sum(int(load["num_running_reqs"]) for load in loads)


async def test_a_real_draft_is_labelled_exactly_and_the_cut_is_found(eagle: Lane) -> None:
    run = await complete(eagle)
    assert run.exactness is Exactness.EXACT
    assert [len(chunk.ids) for chunk in run.chunks] == [1, 1, 4, 1, 4, 1, 4, 1, 3]
    assert [token.id for token in run.tokens] == list(range(10, 30))
    assert [token.source.value[0] for token in run.tokens] == list("ft" + "dddtt" * 3 + "ddd")
    assert run.counters is not None and find_cut(run.counters) == 1
    assert metrics.acceptance_length(run.counters) == 2.5
    assert metrics.acceptance_rate(run.counters, run.num_steps) == 0.5
    assert run.finish_reason == "length"


async def test_each_real_token_has_its_own_piece(eagle: Lane) -> None:
    run = await complete(eagle)
    assert [token.piece for token in run.tokens] == [f" w{index}" for index in range(10, 30)]


async def test_a_real_baseline_is_all_target(baseline: Lane) -> None:
    run = await complete(baseline)
    assert not baseline.is_speculative
    assert run.exactness is Exactness.EXACT
    assert [token.source for token in run.tokens] == [Source.FIRST] + [Source.TARGET] * 19
    assert metrics.acceptance_length(run.counters) is None


async def test_both_real_lanes_write_the_same(eagle: Lane, baseline: Lane) -> None:
    drafted, plain = await complete(eagle, 40), await complete(baseline, 40)
    assert metrics.first_difference([t.id for t in drafted.tokens], [t.id for t in plain.tokens]) is None


async def test_a_real_reply_of_one_token_is_exact(eagle: Lane) -> None:
    run = await complete(eagle, 1)
    assert run.exactness is Exactness.EXACT
    assert [token.source for token in run.tokens] == [Source.FIRST]


async def test_stopping_a_real_run_ends_it_there_and_keeps_what_came(eagle: Lane) -> None:
    stop = asyncio.Event()
    request = Request(uuid4().hex, PROMPT, Sampling(max_tokens=900, ignore_eos=True))
    run = None
    async for event in stream_run(eagle, request, stop=stop):
        if isinstance(event, TokensArrived) and event.first_index > 20:
            stop.set()
        if isinstance(event, RunEnded):
            run = event.run
    assert run is not None and run.error is None
    assert 20 < len(run.tokens) < 900
    assert run.exactness in (Exactness.EXACT, Exactness.PROVISIONAL)
    assert run.finish_reason in ("abort", None)


async def test_closing_the_stream_stops_the_real_engine(eagle: Lane) -> None:
    request = Request(uuid4().hex, PROMPT, Sampling(max_tokens=900, ignore_eos=True))
    async with aclosing(stream_run(eagle, request)) as events:
        async for event in events:
            if isinstance(event, TokensArrived):
                break
    for _ in range(50):
        if await count_running(eagle) == 0:
            break
        await asyncio.sleep(0.1)
    assert await count_running(eagle) == 0


async def test_a_real_lane_tells_what_it_is(eagle: Lane, baseline: Lane) -> None:
    assert (eagle.version, eagle.algorithm, eagle.num_steps, eagle.topk) == ("0.5.23", "EAGLE3", 3, 1)
    assert eagle.warnings == baseline.warnings == ()
    assert eagle.facts["dtype"] == "bfloat16"
    assert len(eagle.vocabulary) >= 1000
    assert eagle.vocabulary[10] == " w10"


async def test_a_real_server_answers_the_small_calls(eagle: Lane) -> None:
    assert await detokenize(eagle, [[10, 11], [12]]) == ("w10 w11", "w12")
    ids = await tokenize_chat(eagle, [{"role": "user", "content": "w5 w6"}])
    assert ids and all(isinstance(token, int) for token in ids)
    await flush_cache(eagle)


async def test_a_prompt_that_is_too_long_is_refused_with_a_remedy(eagle: Lane) -> None:
    request = Request(uuid4().hex, (7,) * 9000, Sampling(max_tokens=5))
    events = [event async for event in stream_run(eagle, request)]
    assert isinstance(events[-1], RunEnded)
    assert "Shorten" in str(events[-1].run.error)
