"""The charts of a comparison: both lanes in each, and a title that states the finding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from backend import metrics
from backend.events import Exactness
from ui.charts import (
    Arrivals,
    Chart,
    Colour,
    Series,
    SpeedLine,
    accepted_chart,
    place_chart,
    progress_chart,
    speed_chart,
)
from ui.numbers import format_ratio
from ui.panel import PanelUpdate

COLOURS: tuple[Colour, Colour] = ("eagle", "base")
NO_STEPS = "No verify step yet."


@dataclass(frozen=True)
class Side:
    """One lane of a comparison and what its panel shows; no panel before its run. `num_steps` is 0 without a draft."""

    label: str
    num_steps: int
    panel: PanelUpdate | None = None


Sides = tuple[Side, Side]


def compare_speeds(sides: Sides, speedup: float | None = None) -> Chart:
    """Tokens per second over time; the title has the speedup where there is one."""
    left, right = (side.panel.speed if side.panel else SpeedLine(side.label, (), (), None) for side in sides)
    chart = speed_chart(left, right)
    alone = [line for line in (left, right) if line.decode_speed is not None]
    if len(alone) == 1:
        chart = replace(chart, title=f"{alone[0].decode_speed:.0f} tokens/s, {alone[0].name}")
    return chart if speedup is None else replace(chart, title=f"{format_ratio(speedup)}: {chart.title}")


def compare_progress(sides: Sides) -> Chart:
    """Tokens so far over time."""
    left, right = (side.panel.arrivals if side.panel else Arrivals(side.label, (), False) for side in sides)
    return progress_chart(left, right)


def compare_accepted(sides: Sides) -> Chart:
    """How many verify steps accepted 0, 1, … drafts, of each lane that speculates."""
    return _merge([accepted_chart(find_histogram(side)) for side in sides], sides)


def compare_places(sides: Sides) -> Chart:
    """Share of verify steps whose draft at each place was accepted, of each lane that speculates."""
    return _merge([place_chart(find_histogram(side)) for side in sides], sides)


def accepted_strip(sides: Sides) -> Chart:
    """Accepted drafts of each verify step, in the order of the steps."""
    series: list[Series] = []
    titles: list[str] = []
    for side, colour in zip(sides, COLOURS, strict=True):
        accepted = find_accepted(side)
        if accepted is None:
            continue
        steps = list(range(1, len(accepted) + 1))
        hover = "step %{x:.0f}: %{y:.0f} accepted<extra></extra>"
        series.append(Series(side.label, steps, accepted, colour, shape="hvh", filled=not series, hover=hover))
        titles.append(_strip_title(accepted))
    hidden = any(side.panel is not None and side.panel.view.done and side.num_steps for side in sides)
    return Chart(
        title=" · ".join(titles) or "Accepted, step by step",
        x_title="verify step",
        y_title="drafts accepted",
        series=series,
        empty="The steps of this run cannot be told apart." if hidden else NO_STEPS,
    )


def _strip_title(accepted: Sequence[int]) -> str:
    barren = sum(1 for drafts in accepted if drafts == 0)
    return f"{barren} of {len(accepted)} steps accept nothing, the best {max(accepted)}"


def find_histogram(side: Side) -> tuple[int, ...] | None:
    """[k] = verify steps that accepted k drafts: the engine's own count at the end, what has arrived until then."""
    counters = side.panel.numbers.counters if side.panel else None
    if counters is not None and counters.histogram is not None:
        return counters.histogram
    accepted = find_accepted(side)
    return metrics.count_histogram(accepted, side.num_steps) if accepted else None


def find_accepted(side: Side) -> tuple[int, ...] | None:
    """Drafts kept in each verify step; None for a lane without a draft, and where the steps are hidden."""
    if side.panel is None or side.num_steps == 0 or side.panel.view.exactness is Exactness.INCONSISTENT:
        return None
    return metrics.accepted_per_step(side.panel.view.tokens)


def _merge(charts: Sequence[Chart], sides: Sides) -> Chart:
    """One chart of the lanes that have something to draw; two such lanes stand beside each other."""
    drawn = [
        (chart, replace(chart.series[0], name=side.label, colour=colour))
        for chart, side, colour in zip(charts, sides, COLOURS, strict=True)
        if chart.series
    ]
    if len(drawn) < 2:
        return drawn[0][0] if drawn else charts[0]
    title = " · ".join(f"{series.name}: {chart.title}" for chart, series in drawn)
    return replace(drawn[0][0], title=title, series=[series for _, series in drawn])
