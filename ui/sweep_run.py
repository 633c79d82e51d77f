"""One sweep, from the prompt to the finding. Knows no component."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, replace
from uuid import uuid4

from backend import metrics
from backend.client import flush_cache, tokenize_chat
from backend.errors import EagleLensError
from backend.events import Request, Run, Sampling
from backend.lanes import Lane
from backend.sweep import MOST_STEPS, SweepPoint, plan_sweep, replies_differ, summarise_points
from ui.compare_run import ENDED, STOP_PATIENCE, WARM_UP_TOKENS, Phase
from ui.conversation import to_messages
from ui.limits import MAX_REPLY_TOKENS, MAX_TRIALS
from ui.live_runs import LiveRuns
from ui.panel import PanelUpdate, stream_panel
from ui.sweep_charts import LivePoint


@dataclass(frozen=True)
class SweepSettings:
    """`repeats` runs of at most `max_tokens` completion tokens for each number of drafts. Greedy: the text is one."""

    system: str
    max_tokens: int
    repeats: int

    def sampling(self, num_steps: int) -> Sampling:
        """The sampling to ask for, within this app's limits."""
        return Sampling(max_tokens=max(2, min(int(self.max_tokens), MAX_REPLY_TOKENS)), num_steps=num_steps)


class Sweep:
    """One sweep under way. `run` drives it and alone changes it; everyone else reads.

    `live` is the run under way. `problem` says what went wrong, `warnings` what may have moved the numbers.
    """

    def __init__(self, lane: Lane, prompt: str, settings: SweepSettings, live_runs: LiveRuns) -> None:
        self.name = uuid4().hex
        self.lane = lane
        self.most = min(MOST_STEPS, lane.max_num_steps)
        self.phase = Phase.WAITING
        self.live: LivePoint | None = None
        self.done = 0
        self.problem = ""
        self.warnings: list[str] = []
        self._prompt = prompt
        self._settings = settings
        self._live_runs = live_runs
        self._plan = plan_sweep(self.most, max(1, min(int(settings.repeats), MAX_TRIALS)))
        self._runs: dict[int, list[Run]] = {}
        self._running: str | None = None
        self._stopping = False
        self._ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def total(self) -> int:
        """How many runs are planned."""
        return len(self._plan)

    @property
    def points(self) -> tuple[SweepPoint, ...]:
        """What the finished runs say."""
        return summarise_points(self._runs)

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self._ended.is_set()

    async def run(self) -> None:
        """Carry it out to its end, when its turn comes; cancelling aborts what runs."""
        self._task = asyncio.current_task()
        try:
            async with self._live_runs.alone:
                await self._measure()
        except EagleLensError as error:
            self.phase, self.problem = Phase.FAILED, str(error)
        finally:
            if self.phase not in ENDED:
                self.phase = Phase.STOPPED
            self.live = None
            self._ended.set()

    async def stop(self) -> None:
        """End it early; finished runs are kept."""
        self._stopping = True
        live = self._live_runs.get(self._running or "")
        if live is not None:
            live.stop.set()
        try:
            await asyncio.wait_for(self._ended.wait(), STOP_PATIENCE)
        except TimeoutError:
            if self._task is not None:
                self._task.cancel()

    async def _measure(self) -> None:
        if self._stopping:
            return
        self.phase = Phase.ASKING
        ids = await tokenize_chat(self.lane, to_messages(self._settings.system, (), self._prompt))
        request = Request("", tuple(ids), self._settings.sampling(0))
        self.phase = Phase.WARMING
        for num_steps in (0, self.most):
            few = replace(request.sampling, max_tokens=WARM_UP_TOKENS, num_steps=num_steps)
            if not self._stopping:
                await self._stream(replace(request, sampling=few), counted=False)
        self.phase = Phase.RUNNING
        for num_steps in self._plan:
            if self._stopping:
                break
            await flush_cache(self.lane)
            self.live = LivePoint(num_steps, None, None)
            run = await self._stream(replace(request, sampling=self._settings.sampling(num_steps)), counted=True)
            if not self._stopping:
                self._runs.setdefault(num_steps, []).append(run)
                self.done += 1
        if replies_differ(self._runs):
            self._warn("The replies differ between numbers of drafts, so the points are not of one text.")
        self.phase = Phase.STOPPED if self._stopping else Phase.DONE

    async def _stream(self, request: Request, *, counted: bool) -> Run:
        rid = uuid4().hex
        self._running = rid
        last: PanelUpdate | None = None
        async with aclosing(stream_panel(self.lane, replace(request, rid=rid), self._live_runs)) as panels:
            async for panel in panels:
                last = panel
                if counted:
                    self.live = _read_live(request.sampling.num_steps or 0, panel)
                    if self._live_runs.running() - {rid}:
                        self._warn("Another reply was written meanwhile: these speeds are too low. Run it again.")
        if last is None or last.run is None:
            raise EagleLensError(f"{self.lane.label} ended without a word. Run the sweep again.")
        if last.run.error is not None:
            raise EagleLensError(last.run.error)
        return last.run

    def _warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)


def _read_live(num_steps: int, panel: PanelUpdate) -> LivePoint:
    """A run so far; its τ from the steps that have arrived."""
    if num_steps == 0:
        return LivePoint(0, panel.numbers.decode_speed, 1.0)
    accepted = metrics.accepted_per_step(panel.view.tokens)
    length = 1 + sum(accepted) / len(accepted) if accepted else None
    return LivePoint(num_steps, panel.numbers.decode_speed, length)
