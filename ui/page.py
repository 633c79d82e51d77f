"""The page: its head, its tabs, and what keeps the head true."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr

from backend.sglang.pair_launch import PairLaunch
from ui.backend_tab import NAME as BACKEND
from ui.backend_tab import build_backend_tab
from ui.chat_tab import build_chat_tab
from ui.compare_tab import build_compare_tab
from ui.draft_length import offer_draft_lengths
from ui.engines import Engines
from ui.limits import MAX_WAITING
from ui.live_runs import LiveRuns
from ui.replay_tab import build_replay_tab
from ui.status import ShareState, render_banner, render_head
from ui.sweep_panel import build_sweep_panel

POLL_INTERVAL = 1.5  # seconds between two looks at the engines


def build_page(engines: Engines, share: Callable[[], ShareState], launch: PairLaunch | None = None) -> gr.Blocks:
    """The whole app as one page. `share` tells the state of the share link, `launch` that of servers started here."""
    live_runs = LiveRuns()
    hidden: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}

    async def offer(offered: int) -> tuple[Any, Any, int]:
        lane = (await engines.state()).eagle
        most = lane.max_num_steps if lane else 0
        if most == offered:
            return gr.skip(), gr.skip(), offered
        return offer_draft_lengths(lane), gr.Accordion(visible=most > 0), most

    async def look(shown: str) -> tuple[Any, Any, str]:
        state, link = await engines.state(), share()
        head, banner = render_head(state, link), render_banner(state, link)
        if head + banner == shown:
            return gr.skip(), gr.skip(), shown
        return head, gr.HTML(banner, visible=bool(banner)), head + banner

    page = gr.Blocks(title="EagleLens", analytics_enabled=False)
    with page:
        head = gr.HTML(elem_id="lens-head", apply_default_css=False)
        banner = gr.HTML(elem_id="lens-banner", visible=False, apply_default_css=False)
        shown = gr.State("")
        with gr.Tabs() as tabs:
            with gr.Tab("Chat", id="chat"):
                chat = build_chat_tab(page, engines, live_runs)
            with gr.Tab("Compare", id="compare"):
                compare = build_compare_tab(page, engines, live_runs)
                sweep = build_sweep_panel(compare.prompt, compare.system, engines, live_runs)
            with gr.Tab("Replay", id="replay"):
                build_replay_tab(page)
            with gr.Tab(BACKEND, id="backend", visible=False) as backend:
                build_backend_tab(page, tabs, backend, engines, live_runs, launch)
        clock = gr.Timer(POLL_INTERVAL)
        gr.on([page.load, clock.tick], look, shown, [head, banner, shown], concurrency_limit=None, **hidden)
        offered = gr.State(0)
        changed = [chat.num_steps, sweep, offered]
        gr.on([page.load, clock.tick], offer, offered, changed, concurrency_limit=None, **hidden)
    page.queue(max_size=MAX_WAITING)
    return page
