"""The big numbers: how they are written, what each means, and the strip that shows them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import gradio as gr

from ui.resources import read_resource

DASH = "–"  # noqa: RUF001  an en dash stands for "no number"

Tone = Literal["plain", "eagle", "slower"]


@dataclass(frozen=True)
class Number:
    """One cell of the strip. `value` is text ready to show, `tip` states the formula."""

    key: str
    value: str
    label: str
    tip: str
    tone: Tone = "plain"


def format_speed(tokens_per_second: float | None) -> str:
    """`58.3`, or a dash where there is no speed."""
    return DASH if tokens_per_second is None else f"{tokens_per_second:.1f}"


def format_seconds(seconds: float | None) -> str:
    """`0.21 s`, or a dash."""
    return DASH if seconds is None else f"{seconds:.2f} s"


def format_ratio(ratio: float | None) -> str:
    """The ratio with two digits, or a dash. Below 1.00 it reads the same way: a slowdown is no special case."""
    return DASH if ratio is None else f"{ratio:.2f}×"  # noqa: RUF001


def format_share(share: float | None) -> str:
    """`54 %`, or a dash."""
    return DASH if share is None else f"{100 * share:.0f} %"


def format_length(length: float | None) -> str:
    """`2.62`, or a dash."""
    return DASH if length is None else f"{length:.2f}"


def speed_number(key: str, lane: str, speed: float | None) -> Number:
    """Decode speed of one lane."""
    tip = "Decode speed = (N - 1) / (time of last token - time of first token), N kept completion tokens."
    return Number(key, format_speed(speed), f"tokens/s, {lane}", tip)


def speedup_number(speedup: float | None, missing: str) -> Number:
    """How much faster, or slower, the draft made it; `missing` says why there is no figure."""
    tip = "Speedup = decode speed with the draft / decode speed of the baseline; same prompt ids, limits and sampling."
    if speedup is None:
        return Number("speedup", DASH, missing, tip)
    slower = speedup < 1
    label = "slower with the draft" if slower else "faster with the draft"
    return Number("speedup", format_ratio(speedup), label, tip, "slower" if slower else "eagle")


def ttft_number(ttft: float | None) -> Number:
    """Time to first token."""
    return Number("ttft", format_seconds(ttft), "to the first token", "TTFT = request sent to first token arrived.")


def acceptance_length_number(length: float | None) -> Number:
    """Acceptance length τ."""
    tip = "τ = (A + V) / V: tokens per verify step; A accepted drafts, V verify steps, as the engine counts them."
    return Number("tau", format_length(length), "acceptance length τ", tip)


def acceptance_rate_number(rate: float | None) -> Number:
    """Acceptance rate."""
    tip = "Acceptance rate = A / (V × drafts per step)."  # noqa: RUF001
    return Number("rate", format_share(rate), "of drafts accepted", tip)


class Numbers(gr.HTML):
    """The strip of big numbers. Its value is a sequence of `Number`."""

    def __init__(self, value: Sequence[Number] = (), **props: Any) -> None:
        super().__init__(
            value,
            html_template=read_resource("html/numbers.html"),
            js_on_load=read_resource("js/numbers.js"),
            apply_default_css=False,
            **props,
        )

    def postprocess(self, value: Sequence[Number] | None) -> str:  # type: ignore[override]
        return json.dumps([asdict(number) for number in value or ()])
