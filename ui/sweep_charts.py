"""The two curves of a sweep over the number of drafts a verify step, with titles that state the finding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from backend.sweep import Finding, SweepPoint, find_best
from ui.charts import Chart, Series
from ui.numbers import format_length, format_ratio, format_speed

X_TITLE = "drafts a verify step"
EMPTY = "The curve starts with the first run."


@dataclass(frozen=True)
class LivePoint:
    """A run under way: its figures so far, None where there are none yet."""

    num_steps: int
    speed: float | None
    acceptance_length: float | None


def sweep_speed_chart(points: Sequence[SweepPoint], live: LivePoint | None = None, *, ended: bool = False) -> Chart:
    """Tokens per second over drafts a step: medians, and the run under way as far as it has come."""
    values = {point.num_steps: point.speed.median for point in points}
    if live is not None and live.speed is not None:
        values.setdefault(live.num_steps, live.speed)
    finding = find_best(points) if ended else None
    title = state_finding(finding) if finding else "Tokens per second by drafts a step"
    return Chart(title, X_TITLE, "tokens/s", _draw("tokens/s", values, "%{y:.1f} tokens/s"), EMPTY, categories=True)


def sweep_length_chart(points: Sequence[SweepPoint], live: LivePoint | None = None, *, ended: bool = False) -> Chart:
    """Acceptance length τ over drafts a step."""
    values = {point.num_steps: point.acceptance_length for point in points if point.acceptance_length is not None}
    if live is not None and live.acceptance_length is not None:
        values.setdefault(live.num_steps, live.acceptance_length)
    title = "Acceptance length τ by drafts a step"
    if ended and len(values) > 1:
        most = max(values)
        title = f"τ reaches {format_length(values[most])} with {count_drafts(most)} a step"
    return Chart(title, X_TITLE, "acceptance length τ", _draw("τ", values, "τ %{y:.2f}"), EMPTY, categories=True)


def state_finding(finding: Finding) -> str:
    """The finding as a sentence: `2 drafts a step are fastest here: 1.21×`."""  # noqa: RUF002
    best = finding.best
    if best.num_steps == 0:
        return f"No draft is fastest here: {format_speed(best.speed.median)} tokens/s"
    verb = "is" if best.num_steps == 1 else "are"
    return f"{count_drafts(best.num_steps)} a step {verb} fastest here: {format_ratio(finding.speedup)}"


def count_drafts(drafts: int) -> str:
    """`1 draft`, `2 drafts`."""
    return f"{drafts} draft" if drafts == 1 else f"{drafts} drafts"


def _draw(name: str, values: dict[int, float], hover: str) -> list[Series]:
    if not values:
        return []
    steps = sorted(values)
    return [
        Series(
            name,
            [str(number) for number in steps],
            [values[number] for number in steps],
            "eagle",
            markers=True,
            hover=f"{hover}<extra></extra>",
        )
    ]
