"""One comparison, from the prompt to the verdict. Knows no component."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from enum import StrEnum
from uuid import uuid4

from backend.client import flush_cache, tokenize_chat
from backend.comparison import Leg, Trial, Verdict, judge, plan_fair, share_hardware
from backend.errors import EagleLensError
from backend.events import Exactness, Request, Run, Sampling
from backend.hardware import describe_hardware
from backend.kept_baselines import KeptBaselines
from backend.lanes import Lane
from ui.conversation import to_messages
from ui.dated_baseline import label_dated, show_dated
from ui.limits import MAX_PROMPT_CHARACTERS, MAX_REPLY_TOKENS, MAX_SYSTEM_CHARACTERS, MAX_TRIALS
from ui.live_runs import LiveRuns
from ui.panel import PanelUpdate, stream_panel
from ui.progress import PAGE_INTERVAL
from ui.token_stream import StreamView

WARM_UP_TOKENS = 24
KEPT = 16  # comparisons whose runs can still be saved
STOP_PATIENCE = 3.0  # seconds the engines get to end a stopped comparison in order
FAIR, RACE = "Fair: one at a time", "Race: both at once"


@dataclass(frozen=True)
class CompareSettings:
    """What a person has chosen. `max_tokens` counts completion tokens.

    `own_devices`: each lane has its own hardware, so that running both at once disturbs neither. `flush`: empty the
    prefix caches of attached servers before each run, which slows their other users; without it a unique cache
    salt keeps the runs out of the cache.
    """

    mode: str
    pace: str
    trials: int
    max_tokens: int
    temperature: float
    top_p: float
    system: str
    own_devices: bool
    flush: bool

    def sampling(self) -> Sampling:
        """The sampling to ask for, within this app's limits."""
        return Sampling(
            temperature=float(self.temperature),
            top_p=float(self.top_p),
            max_tokens=max(1, min(int(self.max_tokens), MAX_REPLY_TOKENS)),
        )


class Phase(StrEnum):
    """Where a comparison is."""

    WAITING = "waiting"
    ASKING = "asking"
    WARMING = "warming up"
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


ENDED = (Phase.DONE, Phase.STOPPED, Phase.FAILED)


class Comparison:
    """One comparison under way. `run` drives it and alone changes it; everyone else reads.

    `dated` is a run that was measured before and stands for the right lane, which is then not asked. `panels` and
    `views` are the two lanes', left first. `trials` are the finished ones, `problem` says what went
    wrong, `warnings` what may have moved the numbers.
    """

    def __init__(
        self,
        name: str,
        lanes: tuple[Lane, Lane],
        prompt: str,
        settings: CompareSettings,
        live_runs: LiveRuns,
        dated: Run | None = None,
    ) -> None:
        self.name = name
        self.lanes = lanes
        self.dated = dated
        self.prompt = prompt
        self.settings = settings
        self.phase = Phase.WAITING
        self.trial = 0
        self.panels: list[PanelUpdate | None] = [None, None]
        self.views: list[StreamView] = [_waiting_view(lane) for lane in lanes]
        self.trials: list[Trial] = []
        self.problem = ""
        self.warnings: list[str] = []
        self._live_runs = live_runs
        self._shown: list[tuple[PanelUpdate, PanelUpdate]] = []
        self._running: set[str] = set()
        self._stopping = False
        self._ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_race(self) -> bool:
        """Whether both lanes run at once."""
        return self.settings.pace == RACE and self.dated is None

    @property
    def is_show(self) -> bool:
        """Whether the lanes run at once on the same hardware, so that no speedup may be kept."""
        return self.is_race and not self.settings.own_devices

    @property
    def verdict(self) -> Verdict:
        """What the finished trials say."""
        return judge(self.trials, keep_speedup=not self.is_show)

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self._ended.is_set()

    async def run(self, alone: asyncio.Lock) -> None:
        """Carry it out to its end; cancelling aborts what runs. Comparisons take turns through `alone`."""
        self._task = asyncio.current_task()
        try:
            async with alone:
                await self._measure()
        except EagleLensError as error:
            self.phase, self.problem = Phase.FAILED, str(error)
        finally:
            if self.phase not in ENDED:
                self.phase = Phase.STOPPED
            self._ended.set()

    async def stop(self) -> None:
        """End it early; what has arrived is kept."""
        self._stopping = True
        for rid in self._running:
            live = self._live_runs.get(rid)
            if live is not None:
                live.stop.set()
        try:
            await asyncio.wait_for(self._ended.wait(), STOP_PATIENCE)
        except TimeoutError:
            if self._task is not None:
                self._task.cancel()

    async def watch(self, side: int) -> AsyncGenerator[StreamView, None]:
        """One lane's panel as it changes, at the page's pace; whatever the other lane does."""
        shown: StreamView | None = None
        while True:
            ended = self.ended
            view = self.views[side]
            if view is not shown:
                shown = view
                yield view
            if ended:
                return
            await asyncio.sleep(PAGE_INTERVAL)

    async def _measure(self) -> None:
        if self._stopping:
            return
        self.phase = Phase.ASKING
        messages = to_messages(self.settings.system, (), self.prompt)
        ids = await tokenize_chat(self.lanes[0], messages)
        request = Request("", tuple(ids), self.settings.sampling())
        legs = plan_fair(max(1, min(int(self.settings.trials), MAX_TRIALS)))
        for leg in legs[:2]:
            if not self._stopping and not self._is_dated(leg):
                await self._warm_up(leg, request)
        await (self._race(request, legs) if self.is_race else self._take_turns(request, legs[2:]))
        self._settle()

    async def _take_turns(self, request: Request, legs: tuple[Leg, ...]) -> None:
        runs: dict[int, Run] = {}
        for leg in legs:
            if self._stopping:
                return
            if not runs:
                self._begin_trial(leg)
            runs[leg.side] = await self._run_leg(leg, request)
            if len(runs) == 2:
                self._end_trial(Trial(runs[0], runs[1]))
                runs = {}

    async def _race(self, request: Request, legs: tuple[Leg, ...]) -> None:
        for trial in range(len(legs) // 2 - 1):
            if self._stopping:
                return
            self._begin_trial(Leg(0, trial))
            try:
                async with asyncio.TaskGroup() as group:
                    left, right = (group.create_task(self._run_leg(Leg(side, trial), request)) for side in (0, 1))
            except ExceptionGroup as failures:
                raise failures.exceptions[0] from failures
            self._end_trial(Trial(left.result(), right.result()))

    async def _warm_up(self, leg: Leg, request: Request) -> None:
        self.phase = Phase.WARMING
        few = min(WARM_UP_TOKENS, request.sampling.max_tokens)
        await self._stream(leg, replace(request, sampling=replace(request.sampling, max_tokens=few)))

    async def _run_leg(self, leg: Leg, request: Request) -> Run:
        """One timed run, with the prefix cache kept out of it; a dated one is only shown."""
        if self.dated is not None and self._is_dated(leg):
            panel = show_dated(self.lanes[leg.side], self.dated)
            self.panels[leg.side], self.views[leg.side] = panel, panel.view
            return self.dated
        lane = self.lanes[leg.side]
        if lane.is_embedded or self.settings.flush:
            await self._flush(lane)
        else:
            request = replace(request, cache_salt=uuid4().hex)
        self.phase = Phase.RUNNING
        return await self._stream(leg, request)

    def _is_dated(self, leg: Leg) -> bool:
        return leg.side == 1 and self.dated is not None

    async def _flush(self, lane: Lane) -> None:
        try:
            await flush_cache(lane)
        except EagleLensError as error:
            self._warn(f"The prefix cache was not emptied, so TTFT may be too low. {error}")

    async def _stream(self, leg: Leg, request: Request) -> Run:
        """Stream one run; a timed one is shown in its panel. Raises EagleLensError where it failed."""
        lane, rid = self.lanes[leg.side], uuid4().hex
        self._running.add(rid)
        last: PanelUpdate | None = None
        try:
            async with aclosing(stream_panel(lane, replace(request, rid=rid), self._live_runs)) as panels:
                async for panel in panels:
                    last = panel
                    if leg.trial is not None:
                        self.panels[leg.side], self.views[leg.side] = panel, panel.view
                        if not self.is_race and self._live_runs.running() - {rid}:
                            self._warn("Another reply was written meanwhile: these speeds are too low. Run it again.")
        finally:
            self._running.discard(rid)
        if last is None or last.run is None:
            raise EagleLensError(f"{lane.label} ended without a word. Run it again.")
        if last.run.error is not None:
            raise EagleLensError(last.run.error)
        return _with_hardware(last.run, lane)

    def _begin_trial(self, leg: Leg) -> None:
        self.trial = leg.trial or 0
        self.panels = [None, None]
        self.views = [_waiting_view(lane) for lane in self.lanes]

    def _end_trial(self, trial: Trial) -> None:
        self.trials.append(trial)
        left, right = self.panels
        if left is not None and right is not None:
            self._shown.append((left, right))
        for run in (trial.left, trial.right):
            if run.counters is not None and run.counters.cached_tokens:
                self._warn(
                    f"{run.counters.cached_tokens} prompt tokens of {run.lane} came out of its prefix cache, "
                    "so its time to first token is too low."
                )

    def _settle(self) -> None:
        """Show the typical trial, and say how it ended."""
        if self._stopping:
            self.phase = Phase.STOPPED
            return
        typical = self.verdict.typical
        if typical is not None:
            at = self.trials.index(self.verdict.trials[typical])
            self.panels = list(self._shown[at])
            self.views = [panel.view for panel in self._shown[at]]
        self.phase = Phase.DONE

    def _warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)


class Comparisons:
    """The comparisons of this app, of all visitors, by a random name that only their own page knows."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Comparison] = OrderedDict()

    def begin(
        self,
        lanes: tuple[Lane, Lane],
        prompt: str,
        settings: CompareSettings,
        live_runs: LiveRuns,
        dated: Run | None = None,
    ) -> Comparison:
        """Enter a new comparison; nothing runs yet."""
        comparison = Comparison(uuid4().hex, lanes, prompt, settings, live_runs, dated)
        self._kept[comparison.name] = comparison
        while len(self._kept) > KEPT and next(iter(self._kept.values())).ended:
            self._kept.popitem(last=False)
        return comparison

    def get(self, name: str) -> Comparison | None:
        """The comparison of this name, None where it is unknown or forgotten."""
        return self._kept.get(name)


async def find_dated(kept: KeptBaselines, lane: Lane, prompt: str, settings: CompareSettings) -> Run | None:
    """The newest kept baseline of this prompt with these settings, under a label with its date; None without one.

    Raises EagleLensError.
    """
    ids = await tokenize_chat(lane, to_messages(settings.system, (), prompt))
    run = kept.find(lane, Request("", ids, settings.sampling()))
    return None if run is None else label_dated(run)


def lanes_have_own_devices(left: Lane, right: Lane) -> bool:
    """What can be said without asking a person: lanes on different hosts disturb each other little."""
    return not share_hardware(left.base_url, right.base_url)


def find_refusal(prompt: str, settings: CompareSettings) -> str:
    """Why this prompt is not compared, empty where it is."""
    if not prompt.strip():
        return "Write a prompt first, or take an example."
    if len(prompt) > MAX_PROMPT_CHARACTERS:
        return f"The prompt has {len(prompt):,} characters; the limit is {MAX_PROMPT_CHARACTERS:,}. Shorten it."
    if len(settings.system) > MAX_SYSTEM_CHARACTERS:
        return f"The system prompt has more than {MAX_SYSTEM_CHARACTERS:,} characters. Shorten it."
    return ""


def _waiting_view(lane: Lane) -> StreamView:
    # A name of its own clears the panel.
    return StreamView(uuid4().hex, lane.label, "waits for its turn", (), (), Exactness.PROVISIONAL, False)


def _with_hardware(run: Run, lane: Lane) -> Run:
    """The run with this machine's hardware among its facts, where the lane's server is on this machine."""
    if not share_hardware(lane.base_url, "http://localhost"):
        return run
    return replace(run, server={**run.server, "hardware": describe_hardware()})
