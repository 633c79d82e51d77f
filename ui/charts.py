"""The charts: what each one draws, with a title that states its finding, and the component that draws it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import gradio as gr

from backend.metrics import SPEED_WINDOW
from ui.resources import PLOTLY_URL, read_resource

Colour = Literal["eagle", "base"]

SMALLEST_GAP = 0.05  # seconds; a smaller one would be written as 0.0
WHOLE_SPEED = 10.0  # tokens per second; slower ones are told with a decimal, and any two that would read the same


@dataclass(frozen=True)
class Series:
    """One line or row of bars; `x` and `y` have equal length. `dash` says what colour says, without it.

    `shape` is how a line goes from point to point: `vh` where a value holds up to its own x, `hv` where it holds from
    there on, `hvh` around it.
    """

    name: str
    x: Sequence[float | str]
    y: Sequence[float]
    colour: Colour
    kind: Literal["line", "bar"] = "line"
    dash: Literal["solid", "dash", "dot"] = "solid"
    shape: Literal["linear", "hv", "vh", "hvh"] = "linear"
    filled: bool = False
    markers: bool = False
    hover: str = "%{y:.1f}<extra>%{fullData.name}</extra>"


@dataclass(frozen=True)
class Chart:
    """A chart as plain data. `empty` is what stands there while there is nothing to draw."""

    title: str
    x_title: str
    y_title: str
    series: Sequence[Series]
    empty: str
    categories: bool = False
    y_range: tuple[float, float] | None = None

    @property
    def description(self) -> str:
        """The chart in words, for those who do not see it."""
        names = ", ".join(series.name for series in self.series)
        return f"{self.title}. {self.y_title} over {self.x_title}. {names}".strip()


@dataclass(frozen=True)
class SpeedLine:
    """Speed over time of one lane: seconds since its request was sent, tokens per second, its decode speed."""

    name: str
    seconds: Sequence[float]
    speeds: Sequence[float]
    decode_speed: float | None


@dataclass(frozen=True)
class ReferenceSpeed:
    """A decode speed measured earlier. `measured` says when and on what."""

    decode_speed: float
    measured: str


def speed_chart(eagle: SpeedLine, baseline: SpeedLine | None, reference: ReferenceSpeed | None = None) -> Chart:
    """Tokens per second over time, against the baseline measured now, or a dated line of the last one measured."""
    series = [Series(eagle.name, eagle.seconds, eagle.speeds, "eagle", shape="vh")] if eagle.seconds else []
    if baseline is not None and baseline.seconds:
        series.append(Series(baseline.name, baseline.seconds, baseline.speeds, "base", dash="dash", shape="vh"))
    elif reference is not None and eagle.seconds:
        ends = [0.0, max(eagle.seconds[-1], 1.0)]
        name = f"baseline, measured {reference.measured}"
        series.append(Series(name, ends, [reference.decode_speed] * 2, "base", dash="dot"))
    return Chart(
        title=_speed_title(eagle, baseline),
        x_title="time since the request (s)",
        y_title=f"tokens/s in each {SPEED_WINDOW:g} s",
        series=series,
        empty="The curve starts with the second token.",
    )


def _speed_title(eagle: SpeedLine, baseline: SpeedLine | None) -> str:
    if eagle.decode_speed is None:
        return "Tokens per second"
    if baseline is None or baseline.decode_speed is None:
        return f"{eagle.decode_speed:.0f} tokens/s with the draft"
    left, right = eagle.decode_speed, baseline.decode_speed
    digits = 0 if min(left, right) >= WHOLE_SPEED and round(left) != round(right) else 1
    return f"{left:.{digits}f} vs {right:.{digits}f} tokens/s"


@dataclass(frozen=True)
class Arrivals:
    """When each token of one lane arrived, in seconds since its request was sent."""

    name: str
    seconds: Sequence[float]
    done: bool


def progress_chart(eagle: Arrivals, baseline: Arrivals) -> Chart:
    """Tokens so far over time, for both lanes."""
    lanes: list[tuple[Arrivals, Colour]] = [(eagle, "eagle"), (baseline, "base")]
    series = [
        Series(
            lane.name,
            *_thin(lane.seconds),
            colour,
            dash="solid" if colour == "eagle" else "dash",
            shape="hv",
            hover="%{y:.0f} tokens<extra>%{fullData.name}</extra>",
        )
        for lane, colour in lanes
        if lane.seconds
    ]
    return Chart(
        title=_progress_title(eagle, baseline),
        x_title="time since the request (s)",
        y_title="tokens so far",
        series=series,
        empty="The curves start with the first token.",
    )


def _thin(seconds: Sequence[float], points: int = 300) -> tuple[list[float], list[float]]:
    stride = max(1, len(seconds) // points)
    counts = list(range(1, len(seconds) + 1, stride))
    if counts[-1] != len(seconds):
        counts.append(len(seconds))
    return [seconds[count - 1] for count in counts], [float(count) for count in counts]


def _progress_title(eagle: Arrivals, baseline: Arrivals) -> str:
    if not (eagle.done and baseline.done and eagle.seconds and baseline.seconds):
        return "Tokens so far"
    if len(eagle.seconds) != len(baseline.seconds):
        return f"{len(eagle.seconds)} and {len(baseline.seconds)} tokens: lengths differ"
    gap = baseline.seconds[-1] - eagle.seconds[-1]
    if abs(gap) < SMALLEST_GAP:
        return f"Both finished after {eagle.seconds[-1]:.1f} s"
    return f"{eagle.name} finished {abs(gap):.1f} s {'earlier' if gap > 0 else 'later'} than {baseline.name}"


def accepted_chart(histogram: Sequence[int] | None) -> Chart:
    """How many verify steps accepted 0, 1, … drafts. `histogram[k]` counts the steps that accepted k."""
    empty = "No verify step yet."
    if not histogram or not sum(histogram):
        return Chart("Accepted per step", "drafts accepted", "verify steps", (), empty, categories=True)
    bars = Series(
        "verify steps",
        [str(accepted) for accepted in range(len(histogram))],
        [float(count) for count in histogram],
        "eagle",
        kind="bar",
        hover="%{y:.0f} steps<extra></extra>",
    )
    return Chart(
        _accepted_title(histogram), "drafts accepted in a verify step", "verify steps", [bars], empty, categories=True
    )


def _accepted_title(histogram: Sequence[int]) -> str:
    most, last = max(histogram), len(histogram) - 1
    words = {0: "none", last: f"all {last}" if last > 1 else "their draft"}
    tops = [words.get(accepted, str(accepted)) for accepted, count in enumerate(histogram) if count == most]
    if len(tops) > 1:
        return f"As many steps accept {', '.join(tops[:-1])} as {tops[-1]}"
    return f"{100 * most / sum(histogram):.0f} % of steps accept {tops[0]}"


def place_chart(histogram: Sequence[int] | None) -> Chart:
    """Share of verify steps whose draft at each place was accepted, place 1 first."""
    empty = "No verify step yet."
    if not histogram or sum(histogram) == 0 or len(histogram) < 2:
        return Chart("Acceptance by place", "place of the draft", "accepted (%)", (), empty, categories=True)
    steps = sum(histogram)
    shares = [100 * sum(histogram[place:]) / steps for place in range(1, len(histogram))]
    bars = Series(
        "accepted",
        [str(place) for place in range(1, len(histogram))],
        shares,
        "eagle",
        kind="bar",
        hover="%{y:.0f} % of steps<extra></extra>",
    )
    title = f"Place 1 is accepted in {shares[0]:.0f} % of steps"
    if len(shares) > 1:
        title += f", place {len(shares)} in {shares[-1]:.0f} %"
    return Chart(title, "place of the draft in its step", "accepted (%)", [bars], empty, True, (0.0, 100.0))


class LensChart(gr.HTML):
    """Draws a `Chart` in the browser; updating it redraws in place."""

    def __init__(self, value: Chart | None = None, **props: Any) -> None:
        super().__init__(
            value,
            html_template=read_resource("html/chart.html"),
            js_on_load=read_resource("js/chart.js"),
            head=f'<script src="{PLOTLY_URL}"></script>',
            apply_default_css=False,
            **props,
        )

    def postprocess(self, value: Chart | None) -> str | None:  # type: ignore[override]
        if value is None:
            return None
        # asdict would copy every point.
        series = [vars(series) for series in value.series]
        return json.dumps({**vars(value), "series": series, "description": value.description})
