"""The sweep's panel: tokens per second and τ over the number of drafts a step, measured live on one prompt."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import gradio as gr

from backend.sweep import find_rivals
from ui.charts import LensChart
from ui.compare_run import Phase
from ui.engines import Engines
from ui.limits import MAX_PROMPT_CHARACTERS, MAX_SYSTEM_CHARACTERS
from ui.live_runs import LiveRuns
from ui.markdown import escape_markup
from ui.sweep_charts import count_drafts, sweep_length_chart, sweep_speed_chart
from ui.sweep_run import Sweep, SweepSettings

INTERVAL = 0.2  # seconds between two redraws
KEPT = 16  # sweeps that can still be stopped
DEFAULT_TOKENS = 96
DEFAULT_REPEATS = 2
MOST_REPEATS = 5
HINT = "The same greedy reply with 0, 1, 2, … drafts a verify step, one run after the other; 0 is without the draft."
NOT_EMBEDDED = "Only the embedded engine takes a number of drafts with each request."

Updates = dict[Any, Any]


@dataclass(frozen=True)
class SweepPanel:
    """The components of the panel."""

    box: gr.Accordion
    go: gr.Button
    stop: gr.Button
    max_tokens: gr.Slider
    repeats: gr.Slider
    progress: gr.Markdown
    speeds: LensChart
    lengths: LensChart
    current: gr.State

    def board(self) -> list[Any]:
        """Everything that a sweep changes."""
        return [self.go, self.stop, self.progress, self.speeds, self.lengths]


def build_sweep_panel(prompt: gr.Textbox, system: gr.Textbox, engines: Engines, live_runs: LiveRuns) -> gr.Accordion:
    """Lay out the panel inside the current context; it measures on what stands in `prompt`.

    Returns the box around it, hidden until an engine is known that can be swept.
    """
    panel = _lay_out()
    events = _SweepEvents(panel, engines, live_runs)
    free: dict[str, Any] = {"concurrency_limit": None, "show_progress": "hidden", "api_visibility": "private"}
    begun = panel.go.click(
        events.begin,
        [prompt, system, panel.max_tokens, panel.repeats],
        [panel.current, *panel.board()],
        **free,
    )
    begun.then(events.measure, panel.current, panel.board(), **free)
    panel.stop.click(events.stop, panel.current, None, **free)
    return panel.box


def _lay_out() -> SweepPanel:
    with gr.Accordion("Sweep: drafts per step", open=False, visible=False, elem_id="sweep") as box:
        progress = gr.Markdown(HINT, elem_id="sweep-progress", elem_classes="lens-progress")
        with gr.Row():
            max_tokens = gr.Slider(16, 512, DEFAULT_TOKENS, step=16, label="Tokens per run")
            repeats = gr.Slider(
                1,
                MOST_REPEATS,
                DEFAULT_REPEATS,
                step=1,
                elem_id="sweep-repeats",
                label="Repeats",
                info="Up and back again; medians are shown.",
            )
        with gr.Row(elem_classes="lens-tools"):
            go = gr.Button("Sweep", variant="primary", elem_id="sweep-go", min_width=112)
            stop = gr.Button("Stop", variant="stop", elem_id="sweep-stop", min_width=96, interactive=False)
        with gr.Row(elem_classes="lens-charts"):
            speeds = LensChart(sweep_speed_chart(()), elem_id="sweep-speeds", min_width=320)
            lengths = LensChart(sweep_length_chart(()), elem_id="sweep-lengths", min_width=320)
    return SweepPanel(box, go, stop, max_tokens, repeats, progress, speeds, lengths, gr.State(""))


class _SweepEvents:
    """What happens in the panel, for all visitors."""

    def __init__(self, panel: SweepPanel, engines: Engines, live_runs: LiveRuns) -> None:
        self._panel = panel
        self._engines = engines
        self._live_runs = live_runs
        self._sweeps: OrderedDict[str, Sweep] = OrderedDict()

    async def begin(self, prompt: str, system: str, max_tokens: float, repeats: float) -> Updates:
        """Check the prompt and enter a sweep; its name goes to `current`, empty where it is refused."""
        state = await self._engines.state()
        problem = _find_refusal(prompt, system) or state.problem
        if not problem and state.eagle is None:
            problem = "The engine is still loading: sweep when it is ready."
        if not problem and state.eagle is not None and not state.eagle.max_num_steps:
            problem = NOT_EMBEDDED
        if problem or state.eagle is None:
            return {self._panel.current: "", self._panel.progress: escape_markup(problem)}
        sweep = Sweep(state.eagle, prompt, SweepSettings(system, int(max_tokens), int(repeats)), self._live_runs)
        self._sweeps[sweep.name] = sweep
        while len(self._sweeps) > KEPT and next(iter(self._sweeps.values())).ended:
            self._sweeps.popitem(last=False)
        return {
            self._panel.current: sweep.name,
            self._panel.go: gr.Button(interactive=False),
            self._panel.stop: gr.Button(interactive=True),
            **self._show(sweep),
        }

    async def measure(self, name: str) -> AsyncGenerator[Updates, None]:
        """Carry the sweep out and show it. Closing this generator aborts it."""
        sweep = self._sweeps.get(name)
        if sweep is None or sweep.ended:
            return
        task = asyncio.create_task(sweep.run())
        shown: object = None
        try:
            while not sweep.ended:
                now = (sweep.phase, sweep.done, sweep.live)
                if now != shown:
                    shown = now
                    yield self._show(sweep)
                await asyncio.sleep(INTERVAL)
            if sweep.phase is Phase.FAILED:
                self._engines.forget()
            yield {
                **self._show(sweep),
                self._panel.go: gr.Button(interactive=True),
                self._panel.stop: gr.Button(interactive=False),
            }
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def stop(self, name: str) -> None:
        """End the sweep early."""
        sweep = self._sweeps.get(name)
        if sweep is not None:
            await sweep.stop()

    def _show(self, sweep: Sweep) -> Updates:
        points = sweep.points
        return {
            self._panel.progress: escape_markup(_say_progress(sweep)),
            self._panel.speeds: sweep_speed_chart(points, sweep.live, ended=sweep.ended),
            self._panel.lengths: sweep_length_chart(points, sweep.live, ended=sweep.ended),
        }


def _find_refusal(prompt: str, system: str) -> str:
    if not prompt.strip():
        return "Write a prompt first, or take an example."
    if len(prompt) > MAX_PROMPT_CHARACTERS or len(system) > MAX_SYSTEM_CHARACTERS:
        return "The prompt or the system prompt is too long. Shorten it."
    return ""


def _say_progress(sweep: Sweep) -> str:
    running = "" if sweep.live is None else f": {count_drafts(sweep.live.num_steps)} a step"
    said = {
        Phase.WAITING: "Another measurement is running; this one starts after it.",
        Phase.ASKING: "Turning the prompt into tokens.",
        Phase.WARMING: "Warming up: a few tokens without and with the draft, not counted.",
        Phase.RUNNING: f"Run {min(sweep.done + 1, sweep.total)} of {sweep.total}{running}.",
        Phase.STOPPED: "Stopped. Finished runs are kept.",
        Phase.FAILED: sweep.problem,
        Phase.DONE: f"Done: {sweep.total} runs, one at a time, warm-up not counted.{_say_rivals(sweep)}",
    }[sweep.phase]
    return " ".join((said, *sweep.warnings))


def _say_rivals(sweep: Sweep) -> str:
    rivals = find_rivals(sweep.points)
    if not rivals:
        return ""
    return f" The best is too close to call against {', '.join(map(str, rivals))}: more repeats would tell."
