"""Streams captured from a real SGLang 0.5.23, replayed through the wire's reading and the run's labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backend.attribution import find_cut
from backend.events import Exactness, Request, Run, RunStarted, Sampling
from backend.lanes import Lane
from backend.run_builder import RunBuilder
from backend.wire import Delta, read_completions_chunk, read_generate_chunk

CAPTURES = Path(__file__).parent / "captures"
STARTED = RunStarted("Captured", Request("r1", (7, 8, 9), Sampling()), 0.0, 3)


def read_events(name: str) -> list[dict[str, Any]]:
    lines = (CAPTURES / f"{name}.sse").read_text().splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]


def read_deltas(name: str, *, ids_are_deltas: bool = False) -> list[Delta]:
    if "completions" in name:
        return [read_completions_chunk(event) for event in read_events(name)]
    deltas: list[Delta] = []
    before = ""
    for event in read_events(name):
        known = sum(len(delta.ids or ()) for delta in deltas)
        deltas.append(read_generate_chunk(event, known, before, ids_are_deltas=ids_are_deltas))
        before = event["text"]
    return deltas


def build(name: str, lane: Lane, *, num_steps: int = 3, ids_are_deltas: bool = False) -> Run:
    started = RunStarted(STARTED.lane, STARTED.request, 0.0, num_steps)
    builder = RunBuilder(lane, started)
    for number, delta in enumerate(read_deltas(name, ids_are_deltas=ids_are_deltas)):
        builder.add(delta, 0.1 * number)
    _, run = builder.end(None, {})
    return run


CHAIN = Lane("Captured", "http://host", "m", version="0.5.23", algorithm="EAGLE3", num_steps=3, num_draft_tokens=4)
TREE = Lane("Captured", "http://host", "m", algorithm="EAGLE3", num_steps=3, topk=2, num_draft_tokens=6)


def letters(run: Run) -> str:
    return "".join(token.source.value[0] for token in run.tokens)


def test_the_captured_completion_is_exact_and_cut_by_one() -> None:
    run = build("chain_eagle3.completions_spec", CHAIN)
    assert (run.exactness, letters(run)) == (Exactness.EXACT, "ft" + "dddtt" * 3 + "ddd")
    assert run.counters is not None and find_cut(run.counters) == 1
    assert run.text == "".join(f" w{index}" for index in range(10, 30))


def test_the_captured_generate_stream_is_exact() -> None:
    run = build("chain_eagle3.generate", CHAIN)
    assert run.exactness is Exactness.EXACT
    assert letters(run).startswith("fddttdddtt")
    assert run.counters is not None and run.counters.histogram == (12, 0, 1, 12)
    assert (letters(run).count("d"), letters(run).count("t")) == (38, 25)


def test_a_captured_tree_with_merged_chunks_is_told_as_partial() -> None:
    run = build("chain_eagle3_topk2_incremental.generate", TREE, ids_are_deltas=True)
    assert max(len(chunk.ids) for chunk in run.chunks) > 4
    assert run.exactness is Exactness.PARTIAL
    assert "u" in letters(run)
    assert run.counters is not None and len(run.tokens) == run.counters.completion_tokens


def test_a_captured_reply_of_real_text_is_cut_by_two() -> None:
    run = build("smol_standalone_self.generate", CHAIN)
    assert run.counters is not None and find_cut(run.counters) == 2
    assert run.exactness is Exactness.EXACT
    assert letters(run)[-1] == "d"
    assert run.text == read_events("smol_standalone_self.generate")[-1]["text"]


@pytest.mark.parametrize("name", ["chain_nospec_torch_native.completions", "chain_nospec_torch_native.generate"])
def test_a_captured_baseline_is_all_target(name: str) -> None:
    lane = Lane("Captured", "http://host", "m")
    run = build(name, lane, num_steps=0)
    assert run.exactness is Exactness.EXACT
    assert set(letters(run)[1:]) == {"t"}


def test_a_captured_completion_without_counters_claims_only_what_is_certain() -> None:
    run = build("chain_eagle3.completions", CHAIN)
    assert run.counters is not None and run.counters.verify_steps is None
    assert run.exactness is Exactness.PARTIAL
    assert letters(run).startswith("fuutt")
