"""The Compare tab: one prompt, two lanes, each in its own panel, and what came of it."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr

from backend.errors import EagleLensError
from ui.compare_charts import (
    Side,
    Sides,
    accepted_strip,
    compare_accepted,
    compare_places,
    compare_progress,
    compare_speeds,
)
from ui.compare_layout import FAIR_HINT, LEFT, RACE_HINT, RIGHT, CompareTab, lay_out_compare
from ui.compare_numbers import compare_numbers
from ui.compare_run import (
    FAIR,
    RACE,
    CompareSettings,
    Comparison,
    Comparisons,
    Phase,
    find_dated,
    find_refusal,
    lanes_have_own_devices,
)
from ui.compare_verdict import Report, list_lane_warnings, report
from ui.dated_baseline import NOT_MEASURED, make_dated_lane, say_dated_order
from ui.engines import Engines
from ui.live_runs import LiveRuns
from ui.markdown import escape_markup
from ui.modes import load_modes
from ui.photo_finish import Finish
from ui.presets import Preset, load_presets
from ui.save_recording import write_recording

BOARD_INTERVAL = 0.1  # seconds between two redraws of numbers and charts

Updates = dict[Any, Any]


def build_compare_tab(page: gr.Blocks, engines: Engines, live_runs: LiveRuns) -> CompareTab:
    """Lay out the tab inside the current context and wire its events."""
    presets = load_presets()
    tab = lay_out_compare(presets, live_runs)
    events = CompareEvents(tab, presets, engines, live_runs)
    modes = load_modes()
    hidden: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
    free: dict[str, Any] = {"concurrency_limit": None, **hidden}
    begun = gr.on(
        [tab.go.click, tab.prompt.submit],
        events.begin,
        [tab.prompt, *tab.settings()],
        [tab.current, *tab.board()],
        **free,
    )
    begun.then(partial(events.watch, side=0), tab.current, tab.left, **free)
    begun.then(partial(events.watch, side=1), tab.current, tab.right, **free)
    begun.then(events.measure, tab.current, tab.board(), **free)
    tab.stop.click(events.stop, tab.current, None, **free)
    filled = [tab.prompt, tab.mode, tab.system, tab.max_tokens, tab.progress]
    tab.presets.click(events.take_preset, tab.presets, filled, **hidden)
    tab.mode.input(
        lambda name: (modes[name].system, modes[name].max_tokens), tab.mode, [tab.system, tab.max_tokens], **hidden
    )
    tab.pace.change(lambda pace: RACE_HINT if pace == RACE else FAIR_HINT, tab.pace, tab.progress, **hidden)
    page.load(events.suggest_pace, None, [tab.own_devices, tab.pace], **free)
    return tab


class CompareEvents:
    """What happens in the tab, for all visitors."""

    def __init__(self, tab: CompareTab, presets: Sequence[Preset], engines: Engines, live_runs: LiveRuns) -> None:
        self._tab = tab
        self._presets = presets
        self._engines = engines
        self._live_runs = live_runs
        self._modes = load_modes()
        self._comparisons = Comparisons()
        self._folder = tempfile.TemporaryDirectory(prefix="eaglelens-")  # goes with the app

    async def begin(self, prompt: str, *values: Any) -> Updates:
        """Check the prompt and enter a comparison; its name goes to `current`, empty where it is refused."""
        settings = CompareSettings(*values)
        state = await self._engines.state()
        problem = find_refusal(prompt, settings) or state.problem
        if not problem and state.eagle is None:
            problem = "The engine is still loading. Your prompt is kept: compare when it is ready."
        if problem or state.eagle is None:
            return self._refuse(problem)
        if state.baseline is not None:
            lanes = (state.eagle, state.baseline)
            comparison = self._comparisons.begin(lanes, prompt, settings, self._live_runs)
        else:
            try:
                dated = await find_dated(self._engines.kept, state.eagle, prompt, settings)
            except EagleLensError as error:
                return self._refuse(str(error))
            if dated is None:
                return self._refuse(NOT_MEASURED)
            lanes = (state.eagle, make_dated_lane(dated))
            comparison = self._comparisons.begin(lanes, prompt, settings, self._live_runs, dated)
        return {
            self._tab.current: comparison.name,
            self._tab.notice: gr.Markdown(visible=False),
            self._tab.go: gr.Button(interactive=False),
            self._tab.stop: gr.Button(interactive=True),
            self._tab.verdict: Report(),
            self._tab.finish: None,
            self._tab.save: gr.DownloadButton(value=None, interactive=False),
            **_show_live(self._tab, comparison),
        }

    def _refuse(self, problem: str) -> Updates:
        return {self._tab.current: "", self._tab.notice: gr.Markdown(escape_markup(problem), visible=True)}

    async def watch(self, name: str, *, side: int) -> AsyncGenerator[Any, None]:
        """The panel of one lane as `StreamView`s, whatever the other does."""
        comparison = self._comparisons.get(name)
        if comparison is None:
            yield gr.skip()  # a generator that yields nothing would clear what is shown
            return
        async with aclosing(comparison.watch(side)) as views:
            async for view in views:
                yield view

    async def measure(self, name: str) -> AsyncGenerator[Updates, None]:
        """Carry the comparison out; yields everything but the two panels. Closing this generator aborts it."""
        comparison = self._comparisons.get(name)
        if comparison is None:
            yield {self._tab.notice: gr.skip()}
            return
        task = asyncio.create_task(comparison.run(self._live_runs.alone))
        shown: object = None
        try:
            while not comparison.ended:
                now = (comparison.phase, comparison.trial, *comparison.panels)
                if now != shown:
                    shown = now
                    yield _show_live(self._tab, comparison)
                await asyncio.sleep(BOARD_INTERVAL)
            if comparison.phase is Phase.FAILED:
                self._engines.forget()
            yield _show_end(self._tab, comparison, Path(self._folder.name))
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def stop(self, name: str) -> None:
        """End the comparison early."""
        comparison = self._comparisons.get(name)
        if comparison is not None:
            await comparison.stop()

    def take_preset(self, index: int) -> tuple[str, str, str, int, str]:
        """The prompt, mode, system prompt and limit of the preset at this place, and what to expect of it."""
        preset = self._presets[index]
        return preset.prompt, preset.mode, self._modes[preset.mode].system, preset.max_tokens, preset.expect

    async def suggest_pace(self) -> tuple[Any, Any]:
        """Race where the lanes are known to have devices of their own, fair otherwise."""
        state = await self._engines.state()
        if state.eagle is None or state.baseline is None:
            return gr.skip(), gr.skip()
        own = lanes_have_own_devices(state.eagle, state.baseline)
        return own, RACE if own else FAIR


def _sides(comparison: Comparison) -> Sides:
    left, right = (
        Side(lane.label, lane.num_steps, panel) for lane, panel in zip(comparison.lanes, comparison.panels, strict=True)
    )
    return left, right


def _find_vocabulary(comparison: Comparison) -> Sequence[str]:
    return next((lane.vocabulary for lane in comparison.lanes if lane.vocabulary), ())


def _say_progress(comparison: Comparison) -> str:
    trials = int(comparison.settings.trials)
    which = f"Trial {comparison.trial + 1} of {trials}: " if trials > 1 else ""
    how = "both lanes run at once" if comparison.is_race else "one lane runs, the other waits"
    ending = "." if trials == 1 else f": {trials} trials. The panels show the one with the median speedup."
    return {
        Phase.WAITING: "Another comparison is being measured; this one starts after it.",
        Phase.ASKING: "Turning the prompt into tokens.",
        Phase.WARMING: "Warming up: a few tokens on each lane, not counted.",
        Phase.RUNNING: f"{which}{how}.",
        Phase.STOPPED: "Stopped. What has arrived is kept.",
        Phase.FAILED: "It did not come to an end.",
        Phase.DONE: f"Done{ending}",
    }[comparison.phase]


def _show_live(tab: CompareTab, comparison: Comparison) -> Updates:
    """What changes while tokens come."""
    sides = _sides(comparison)
    return {
        tab.progress: _say_progress(comparison),
        tab.numbers: compare_numbers(sides, None, is_show=comparison.is_show),
        tab.speeds: compare_speeds(sides),
        tab.counts: compare_progress(sides),
        tab.accepted: compare_accepted(sides),
        tab.strip: accepted_strip(sides),
        tab.places: compare_places(sides),
    }


def _show_end(tab: CompareTab, comparison: Comparison, folder: Path) -> Updates:
    """The verdict, and what can be done with it."""
    verdict = comparison.verdict
    trial = verdict.trials[verdict.typical] if verdict.typical is not None else None
    runs = (trial.left, trial.right) if trial else ()
    warnings = list_lane_warnings(
        runs, [text for lane in comparison.lanes for text in lane.warnings], comparison.warnings
    )
    sides = _sides(comparison)
    shown = {
        **_show_live(tab, comparison),
        tab.verdict: report(
            verdict,
            is_show=comparison.is_show,
            is_race=comparison.is_race,
            warnings=warnings,
            order=None if comparison.dated is None else say_dated_order(comparison.dated, len(verdict.trials)),
        ),
        tab.notice: gr.Markdown(escape_markup(comparison.problem), visible=bool(comparison.problem)),
        tab.go: gr.Button(interactive=True),
        tab.stop: gr.Button(interactive=False),
    }
    if trial is None or comparison.phase is not Phase.DONE:
        return shown
    speedup = verdict.speedup.median if verdict.speedup else None
    return shown | {
        tab.numbers: compare_numbers(sides, verdict, is_show=comparison.is_show),
        tab.speeds: compare_speeds(sides, speedup),
        tab.finish: Finish(comparison.name, {LEFT: trial.left, RIGHT: trial.right}, not comparison.is_race),
        tab.save: gr.DownloadButton(
            value=write_recording(comparison.prompt, runs, _find_vocabulary(comparison), folder), interactive=True
        ),
    }
