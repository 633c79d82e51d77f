"""Measuring a baseline that has no room beside its EAGLE-3 server: the two take turns for it, once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal
from uuid import uuid4

from backend.client import flush_cache, read_lane, stream_run, tokenize_chat
from backend.errors import EagleLensError
from backend.events import Request, Run, RunEnded, Sampling
from backend.hardware import describe_hardware
from backend.kept_baselines import KeptBaselines
from backend.lanes import Lane
from backend.sglang.pair_servers import PairServers, Wish
from backend.sglang.state import Stage

WARM_UP_TOKENS = 24


@dataclass(frozen=True)
class Question:
    """One prompt to measure: under which title it is kept, what is sent, and how the reply is drawn."""

    title: str
    messages: Sequence[Mapping[str, object]]
    sampling: Sampling


@dataclass(frozen=True)
class TurnState:
    """How far a measurement is; `message` is a sentence, empty before the first."""

    phase: Literal["idle", "running", "done", "failed"] = "idle"
    message: str = ""


class BaselineTurn:
    """Stops the drafting server, starts the baseline, measures it, and starts the drafting server again.

    One measurement at a time; `state` never waits. Where somebody else asks something of the servers meanwhile, that
    is followed, and the measurement ends with what it has.
    """

    def __init__(self, kept: KeptBaselines, api_key: str | None = None) -> None:
        self._kept = kept
        self._api_key = api_key
        self._beginning = threading.Lock()
        self._state = TurnState()

    @property
    def state(self) -> TurnState:
        """The latest state."""
        return self._state

    def start(self, servers: PairServers, questions: Sequence[Question]) -> None:
        """Begin in the background; returns at once, and does nothing while a measurement is under way."""
        with self._beginning:
            if self._state.phase == "running" or not questions:
                return
            self._say("EAGLE-3 is being stopped, and the baseline started.")
        threading.Thread(target=self._work, args=(servers, questions), name="baseline-turn", daemon=True).start()

    def _say(self, message: str) -> None:
        self._state = TurnState("running", message)

    def _work(self, servers: PairServers, questions: Sequence[Question]) -> None:
        wish = servers.show_baseline()
        try:
            end = self._measure(servers, wish, questions)
        except EagleLensError as error:
            end = TurnState("failed", str(error))
        if wish.is_newest():
            servers.show_eagle()
        self._state = end

    def _measure(self, servers: PairServers, wish: Wish, questions: Sequence[Question]) -> TurnState:
        wish.work.join()
        baseline = servers.baseline
        if baseline.stage == Stage.FAILED:
            return TurnState("failed", f"No baseline was measured. {baseline.reason} {baseline.remedy}")
        if baseline.stage != Stage.READY or baseline.base_url is None:
            return TurnState("failed", "No baseline was measured: the servers were asked for something else.")
        count = asyncio.run(self._ask_all(baseline.base_url, baseline.label, questions, wish.is_newest))
        if count < len(questions):
            return TurnState("failed", f"{count} of {len(questions)} prompts were measured before it was stopped.")
        return TurnState("done", f"{count} {'prompt' if count == 1 else 'prompts'} measured and kept.")

    async def _ask_all(
        self, base_url: str, label: str, questions: Sequence[Question], is_wanted: Callable[[], bool]
    ) -> int:
        """Measure and keep each; how many were. Raises EagleLensError."""
        lane = await read_lane(base_url, label, api_key=self._api_key)
        for at, question in enumerate(questions):
            if not is_wanted():
                return at
            self._say(f"Measuring the baseline: {question.title} ({at + 1} of {len(questions)}).")
            self._kept.keep(question.title, await measure_alone(lane, question), lane.vocabulary)
        return len(questions)


async def measure_alone(lane: Lane, question: Question) -> Run:
    """One timed run behind a short warm-up, with an empty prefix cache, and this machine's hardware among its facts.

    Raises EagleLensError where the reply did not come to its own end.
    """
    ids = await tokenize_chat(lane, question.messages)
    few = replace(question.sampling, max_tokens=min(WARM_UP_TOKENS, question.sampling.max_tokens))
    for sampling in (few, question.sampling):
        await flush_cache(lane)
        run = await _complete(lane, Request(uuid4().hex, ids, sampling))
    return replace(run, server={**run.server, "hardware": describe_hardware()})


async def _complete(lane: Lane, request: Request) -> Run:
    run: Run | None = None
    async for event in stream_run(lane, request):
        run = event.run if isinstance(event, RunEnded) else run
    if run is None or run.error is not None:
        raise EagleLensError(run.error if run and run.error else f"{lane.label} ended without a word. Try again.")
    return run
