"""What a comparison found, in words: the verdict, where the replies part, and what was measured, and how."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import gradio as gr

from backend.comparison import (
    Difference,
    LaneDifference,
    Trial,
    Verdict,
    Weight,
    compare_facts,
    explain_difference,
    hash_prompt,
)
from backend.events import Run, Sampling, Token
from backend.metrics import Spread
from ui.numbers import DASH, format_ratio, format_seconds, format_speed
from ui.resources import read_resource

# The facts of a lane that the block shows, and what they are called there.
SHOWN_FACTS = {
    "version": "server",
    "model_path": "model",
    "speculative_draft_model_path": "draft model",
    "speculative_algorithm": "speculation",
    "speculative_num_steps": "drafts per step",
    "speculative_eagle_topk": "topk",
    "speculative_num_draft_tokens": "draft tokens",
    "dtype": "dtype",
    "quantization": "quantisation",
    "kv_cache_dtype": "KV cache dtype",
    "device": "device",
    "hardware": "hardware",
    "tp_size": "tensor parallel",
    "attention_backend": "attention",
    "prefill_attention_backend": "prefill attention",
    "decode_attention_backend": "decode attention",
    "page_size": "page size",
    "max_running_requests": "most requests at once",
    "disable_radix_cache": "prefix cache off",
    "stream_interval": "stream interval",
    "launch_command": "launch command",
    "eaglelens": "embedded engine",
}


@dataclass(frozen=True)
class Excerpt:
    """One reply around the first difference: `token` is the differing one, as text, with its id."""

    lane: str
    before: str
    token: str
    id: int | None
    after: str


@dataclass(frozen=True)
class Row:
    """One line of the block: a setting, and its value in each lane."""

    name: str
    left: str
    right: str


@dataclass(frozen=True)
class Report:
    """All that stands under the numbers. `tone` says whether the draft helped; `reason` why replies may part."""

    headline: str = ""
    tone: Literal["plain", "faster", "slower"] = "plain"
    sentences: Sequence[str] = ()
    excerpts: Sequence[Excerpt] = ()
    reason: str = ""
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()
    lanes: Sequence[str] = ()
    rows: Sequence[Row] = ()


def report(
    verdict: Verdict, *, is_show: bool, is_race: bool, warnings: Sequence[str], order: str | None = None
) -> Report:
    """The words for a verdict. `warnings` are further sentences about the lanes and what happened meanwhile.

    `order` says when and in which order the lanes ran, where that is not the comparison just made.
    """
    if not verdict.trials or verdict.typical is None:
        return Report(warnings=tuple(warnings))
    trial = verdict.trials[verdict.typical]
    facts = compare_facts(trial.left.server, trial.right.server)
    difference = verdict.difference
    parted = trial if difference is None else verdict.trials[difference.trial]
    return Report(
        headline=_headline(verdict, trial, is_show),
        tone=_tone(verdict),
        sentences=_sentences(verdict, trial, order or _say_order(verdict, is_race)),
        excerpts=_excerpts(difference, parted) if difference else (),
        reason=explain_difference(parted) if difference else "",
        warnings=(*warnings, *(_say_difference(fact, trial) for fact in facts if fact.weight is Weight.WARNING)),
        notes=tuple(_say_difference(fact, trial) for fact in facts if fact.weight is Weight.NOTE),
        lanes=(trial.left.lane, trial.right.lane),
        rows=_rows(trial),
    )


def _headline(verdict: Verdict, trial: Trial, is_show: bool) -> str:
    left, right = trial.left.lane, trial.right.lane
    if is_show:
        return "A race on shared hardware is a show: the lanes slow each other down, so no speedup is kept."
    if verdict.speedup is None:
        return "No speedup: a reply was too short to have a decode speed."
    ratio = verdict.speedup.median
    saved = verdict.saved_seconds.median if verdict.saved_seconds else None
    seconds = "" if saved is None else f", {'saving' if saved >= 0 else 'costing'} {abs(saved):.1f} s on this reply"
    return f"{left} decodes at {format_ratio(ratio)} the speed of {right}{seconds}."


def _tone(verdict: Verdict) -> Literal["plain", "faster", "slower"]:
    if verdict.speedup is None:
        return "plain"
    return "slower" if verdict.speedup.median < 1 else "faster"


def _sentences(verdict: Verdict, trial: Trial, order: str) -> tuple[str, ...]:
    sentences = [order]
    if verdict.speedup is not None and verdict.speedup.count > 1:
        low, high = format_ratio(verdict.speedup.low), format_ratio(verdict.speedup.high)
        sentences.append(f"Speedup: median of {verdict.speedup.count} trials, {low} to {high}.")
    for name, pair, write in (
        ("Decode speed", verdict.speeds, lambda value: f"{format_speed(value)} tokens/s"),
        ("Time to first token", verdict.ttfts, format_seconds),
        ("Acceptance length τ", verdict.acceptance_lengths, lambda value: f"{value:.2f}"),
    ):
        told = [
            f"{run.lane} {write(spread.median)}{_say_range(spread, write)}"
            for run, spread in zip((trial.left, trial.right), pair, strict=True)
            if spread is not None
        ]
        if told:
            sentences.append(f"{name}: {', '.join(told)}.")
    sentences.append(_say_outputs(verdict, trial))
    return tuple(sentences)


def _say_order(verdict: Verdict, is_race: bool) -> str:
    count = len(verdict.trials)
    trials = "1 trial" if count == 1 else f"{count} trials"
    if is_race:
        return f"{trials}, both lanes at once, after a warm-up of each."
    return f"{trials}, one lane at a time in alternating order, after a warm-up of each."


def _say_range(spread: Spread, write: Any) -> str:
    return "" if spread.count < 2 else f" ({write(spread.low)} to {write(spread.high)})"


def _say_outputs(verdict: Verdict, trial: Trial) -> str:
    difference = verdict.difference
    if difference is not None:
        where = f" of trial {difference.trial + 1}" if len(verdict.trials) > 1 else ""
        return f"The replies{where} differ from token {difference.index + 1} on."
    if verdict.same is None:
        return "A server did not tell its token ids, so the replies cannot be compared token by token."
    return f"The replies are identical, all {len(trial.left.tokens)} tokens."


def _excerpts(difference: Difference, trial: Trial) -> tuple[Excerpt, ...]:
    return (
        _excerpt(trial.left.lane, difference.before, difference.left, difference.left_after),
        _excerpt(trial.right.lane, difference.before, difference.right, difference.right_after),
    )


def _excerpt(lane: str, before: str, token: Token | None, after: str) -> Excerpt:
    if token is None:
        return Excerpt(lane, before, "the reply ends", None, "")
    return Excerpt(lane, before, token.piece, token.id, after)


def _say_difference(fact: LaneDifference, trial: Trial) -> str:
    name = SHOWN_FACTS.get(fact.name, fact.name)
    values = f"{trial.left.lane} {_write(fact.left)}, {trial.right.lane} {_write(fact.right)}"
    if fact.weight is Weight.WARNING:
        return f"The lanes differ in more than speculation. {name.capitalize()}: {values}."
    return f"{name.capitalize()}: {values}. Speculation may ask for this; it can move the numbers a little."


def _rows(trial: Trial) -> tuple[Row, ...]:
    left, right = trial.left, trial.right
    rows = [
        Row(name, _write(left.server.get(fact)), _write(right.server.get(fact)))
        for fact, name in SHOWN_FACTS.items()
        if left.server.get(fact) is not None or right.server.get(fact) is not None
    ]
    own: list[tuple[str, Any]] = [
        ("measured", lambda run: f"{datetime.fromtimestamp(run.started_at, UTC):%Y-%m-%d %H:%M:%S} UTC"),
        ("prompt", lambda run: f"{len(run.request.prompt_ids)} tokens, SHA-256 {hash_prompt(run.request.prompt_ids)}"),
        ("sampling", lambda run: _write_sampling(run.request.sampling)),
        ("prompt tokens from cache", lambda run: _write(run.counters.cached_tokens if run.counters else None)),
        ("reply", lambda run: f"{len(run.tokens)} tokens, ended by {run.finish_reason}"),
        ("labels", lambda run: run.exactness.value),
    ]
    return (*rows, *(Row(name, write(left), write(right)) for name, write in own))


def _write(value: object) -> str:
    if value is None:
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_write(part)}" for name, part in value.items() if part is not None)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(map(str, value))
    return str(value)


def _write_sampling(sampling: Sampling) -> str:
    drawn = "greedy" if sampling.temperature == 0 else f"temperature {sampling.temperature:g}, top_p {sampling.top_p:g}"
    return f"{drawn}, at most {sampling.max_tokens} tokens"


class VerdictCard(gr.HTML):
    """Shows a `Report`. Model text reaches the page as data and becomes text nodes, never markup."""

    def __init__(self, value: Report | None = None, **props: Any) -> None:
        super().__init__(
            value,
            html_template=read_resource("html/compare_verdict.html"),
            js_on_load=read_resource("js/compare_verdict.js"),
            apply_default_css=False,
            **props,
        )

    def postprocess(self, value: Report | None) -> str:  # type: ignore[override]
        return json.dumps(asdict(value or Report()), ensure_ascii=False)


def list_lane_warnings(runs: Sequence[Run], lane_warnings: Sequence[str], happened: Sequence[str]) -> tuple[str, ...]:
    """What to warn of, each sentence once: what happened, what the lanes say of themselves, broken labels."""
    broken = [
        f"The engine's counters of {run.lane} disagree with what arrived: its labels and τ are not proven."
        for run in runs
        if run.exactness.value == "inconsistent"
    ]
    return tuple(dict.fromkeys((*happened, *lane_warnings, *broken)))
