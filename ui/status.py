"""The head of the page: its name, a chip for each lane, the share link, and a banner where something is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from backend.lanes import Lane
from ui.engines import EngineState


@dataclass(frozen=True)
class ShareState:
    """The share link: `url` once it is there, `problem` where it cannot be had, neither while asking or unasked."""

    asked: bool = False
    url: str | None = None
    problem: str = ""


def render_head(state: EngineState, share: ShareState) -> str:
    """The name and the chips, as HTML; everything that comes from outside is escaped."""
    chips = [_lane_chip(lane) for lane in (state.eagle, state.baseline) if lane is not None]
    if share.url:
        chips.append(f'<span class="chip" data-tone="good">Shared at <b>{escape(share.url)}</b></span>')
    elif share.asked and not share.problem:
        chips.append('<span class="chip">Asking for a share link</span>')
    return f'<div class="lens-head"><h1>EagleLens</h1>{"".join(chips)}</div>'


def _lane_chip(lane: Lane) -> str:
    how = f"{lane.num_steps} drafts per step" if lane.num_steps else "no draft"
    text = f"{lane.label} · {lane.model} · {how} · "
    return f'<span class="chip" data-tone="good">{escape(text)}<b>ready</b></span>'


def render_banner(state: EngineState, share: ShareState) -> str:
    """The banner as HTML, empty where there is nothing to say."""
    parts: list[str] = []
    if state.loading:
        value = "" if state.fraction is None else f' value="{state.fraction:.3f}"'
        parts.append(f'{escape(state.loading)} …<progress max="1"{value}></progress>')
    if state.problem:
        parts.append(escape(state.problem))
    if state.aside:
        parts.append(escape(state.aside))
    warnings = [text for lane in (state.eagle, state.baseline) if lane is not None for text in lane.warnings]
    parts += [escape(text) for text in dict.fromkeys(warnings)]
    if state.baseline is not None and state.baseline.is_speculative:
        parts.append("The second server speculates too: it is no baseline, and a speedup over it means little.")
    if state.eagle is not None and not state.eagle.is_speculative:
        parts.append(
            "The first server does not speculate: no token of it is drafted, and there is nothing to speed up."
        )
    if share.problem:
        parts.append(escape(share.problem))
    return "".join(f'<div class="banner" role="status">{part}</div>' for part in parts)
