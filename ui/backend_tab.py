"""The Backend tab: the servers behind the lanes, for the person at this machine only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gradio as gr

from backend.client import read_load
from backend.errors import EagleLensError
from backend.lanes import Lane
from backend.server_load import ServerLoad
from backend.sglang.pair_launch import PairLaunch
from backend.sglang.pair_servers import PairServers
from ui.backend_baseline import build_baseline_card
from ui.backend_view import LaneReport, render_published, render_report, show_launch, show_log
from ui.engines import BASELINE_LABEL, EAGLE_LABEL, Engines
from ui.live_runs import LiveRuns
from ui.visitor import is_local

NAME = "Backend"
LOOK_INTERVAL = 2.0  # seconds, and only while the tab is open
HIDDEN: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}

Act = Callable[[PairServers], object]


@dataclass(frozen=True)
class _LanePart:
    card: gr.HTML
    command: gr.Code
    log: gr.Textbox
    restart: gr.Button

    def shown(self) -> list[Any]:
        return [self.card, self.command, self.log]


def build_backend_tab(
    page: gr.Blocks, tabs: gr.Tabs, tab: gr.Tab, engines: Engines, live_runs: LiveRuns, launch: PairLaunch | None
) -> None:
    """Lay out the tab inside the current context. `tab` is shown to a local visitor; nobody else gets any of it."""
    with gr.Row(elem_classes="lens-columns"):
        parts = [_lay_out_lane(name, launch is not None) for name in ("eagle", "baseline")]
    takes_turns = launch is not None and launch.plan.takes_turns
    with gr.Row(visible=takes_turns, elem_id="backend-turns"):
        to_eagle = gr.Button("Stop the baseline, start EAGLE-3", elem_id="backend-to-eagle")
        to_baseline = gr.Button("Stop EAGLE-3, start the baseline", elem_id="backend-to-baseline")
    if launch is not None and takes_turns:
        build_baseline_card(tab, engines.kept, launch)
    published = gr.HTML(elem_id="backend-published", apply_default_css=False)
    before = gr.State(())
    clock = gr.Timer(LOOK_INTERVAL, active=False)
    outputs = [part for lane in parts for part in lane.shown()]

    async def look(shown: tuple[str, ...], request: gr.Request) -> list[Any]:
        if not is_local(request):
            return [gr.skip()] * (len(outputs) + 1)
        reports = await read_reports(engines, live_runs, launch)
        texts = tuple(show(report) for report in reports for show in (render_report, show_launch, show_log))
        same = shown if len(shown) == len(texts) else (None,) * len(texts)
        updates = (
            gr.skip() if text == old else gr.update(value=text, visible=bool(text))
            for text, old in zip(texts, same, strict=True)
        )
        return [*updates, texts]

    def open_to(request: gr.Request) -> tuple[Any, Any]:
        if not is_local(request):
            return gr.Tab(visible=False), gr.skip()
        return gr.Tab(visible=True), render_published(launch.plan.pair if launch else None)

    def watch(event: gr.SelectData) -> Any:
        return gr.Timer(active=event.value == NAME)

    def act(what: Act) -> Callable[[gr.Request], None]:
        def carry_out(request: gr.Request) -> None:
            if is_local(request) and launch is not None and launch.servers is not None:
                what(launch.servers)

        return carry_out

    page.load(open_to, None, [tab, published], **HIDDEN)
    tabs.select(watch, None, clock, **HIDDEN)
    gr.on([tab.select, clock.tick], look, before, [*outputs, before], concurrency_limit=None, **HIDDEN)
    for button, what in (
        (parts[0].restart, PairServers.restart_eagle),
        (parts[1].restart, PairServers.restart_baseline),
        (to_eagle, PairServers.show_eagle),
        (to_baseline, PairServers.show_baseline),
    ):
        button.click(act(what), None, None, **HIDDEN)


async def read_reports(
    engines: Engines, live_runs: LiveRuns, launch: PairLaunch | None
) -> tuple[LaneReport, LaneReport]:
    """Both lanes as they are now. Averages are not asked for while replies are written: that takes scheduler time."""
    state = await engines.state()
    quiet = not live_runs.running()
    loads = await asyncio.gather(_read_load(state.eagle, quiet), _read_load(state.baseline, quiet))
    servers = launch.servers if launch else None
    states = (servers.eagle, servers.baseline) if servers else (None, None)
    specs = launch.specs if launch else (None, None)
    eagle = LaneReport(EAGLE_LABEL, state.eagle, loads[0], states[0], specs[0], state.problem)
    return eagle, LaneReport(BASELINE_LABEL, state.baseline, loads[1], states[1], specs[1])


async def _read_load(lane: Lane | None, quiet: bool) -> ServerLoad:
    if lane is None:
        return ServerLoad()
    try:
        return await read_load(lane, with_averages=quiet)
    except EagleLensError:
        return ServerLoad()  # the banner says what is wrong with the lane


def _lay_out_lane(name: str, launched: bool) -> _LanePart:
    with gr.Column(min_width=320):
        return _LanePart(
            card=gr.HTML(elem_id=f"backend-{name}", apply_default_css=False),
            command=gr.Code(
                label="Launch command",
                language="shell",
                interactive=False,
                visible=False,
                elem_id=f"backend-{name}-command",
            ),
            log=gr.Textbox(
                label="End of the log",
                lines=12,
                max_lines=12,
                interactive=False,
                visible=launched,
                elem_id=f"backend-{name}-log",
                elem_classes="backend-log",
            ),
            restart=gr.Button("Restart", visible=launched, elem_id=f"backend-{name}-restart"),
        )
