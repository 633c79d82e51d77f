"""The head of the page: its name, a chip for each lane, the share link, and a banner where something is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from backend.comparison import Weight, compare_facts
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
    count = "1 draft" if lane.num_steps == 1 else f"{lane.num_steps} drafts"
    drafts = f"{count} per step" if lane.num_steps else "no draft"
    how = drafts if lane.tells_speculation else "speculation unknown"
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
    if state.eagle is not None and state.eagle.tells_speculation and not state.eagle.is_speculative:
        parts.append(
            "The first server does not speculate: no token of it is drafted, and there is nothing to speed up."
        )
    if state.eagle is not None and state.baseline is not None:
        parts += [escape(text) for text in list_differences(state.eagle, state.baseline)]
    if share.problem:
        parts.append(escape(share.problem))
    return "".join(f'<div class="banner" role="status">{part}</div>' for part in parts)


def list_differences(eagle: Lane, baseline: Lane) -> tuple[str, ...]:
    """What makes a speedup between two lanes doubtful, a sentence each; settings that a draft forces are left out.

    Where the servers do not both tell their model's path, the names they serve it under are compared.
    """
    found = [
        (fact.name, fact.left, fact.right)
        for fact in compare_facts(eagle.facts, baseline.facts)
        if fact.weight == Weight.WARNING
    ]
    told = all("model_path" in lane.facts for lane in (eagle, baseline))
    if not told and eagle.model != baseline.model:
        found.append(("model", eagle.model, baseline.model))
    return tuple(
        f"The two servers differ in {name} ({eagle.label}: {left}, {baseline.label}: {right}), "
        "so a speedup between them is not the draft's alone."
        for name, left, right in found
    )
