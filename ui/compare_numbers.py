"""The strip of big numbers over a comparison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from backend.comparison import Verdict
from backend.events import Exactness
from backend.metrics import Spread
from ui.compare_charts import Side, Sides
from ui.numbers import (
    DASH,
    Number,
    acceptance_length_number,
    format_seconds,
    format_share,
    speed_number,
    speedup_number,
    ttft_number,
)
from ui.panel import RunNumbers

SAVED_TIP = "Saved = time that decoding this reply at the other lane's speed would take - time it took."
OUTPUTS_TIP = "Compared token by token, by id."


def compare_numbers(sides: Sides, verdict: Verdict | None, *, is_show: bool = False) -> list[Number]:
    """The strip: live figures of what runs, and the verdict's (medians over the trials) once it is there."""
    left, right = sides
    return [
        _speedup(sides, verdict, is_show),
        _speed("left-speed", left, verdict.speeds[0] if verdict else None),
        _speed("right-speed", right, verdict.speeds[1] if verdict else None),
        _acceptance(sides, verdict),
        _saved(verdict),
        _ttft(sides, verdict),
        _outputs(sides, verdict),
    ]


def _speedup(sides: Sides, verdict: Verdict | None, is_show: bool) -> Number:
    spread = verdict.speedup if verdict else None
    number = speedup_number(spread.median if spread else None, "a show, no speedup" if is_show else "speedup")
    if spread is None:
        return number
    left, right = sides
    label = number.label if right.num_steps == 0 else f"{left.label} against {right.label}"
    if spread.count > 1:
        label += f" · {spread.low:.2f} to {spread.high:.2f} in {spread.count} trials"
    return replace(number, label=label)


def _speed(key: str, side: Side, spread: Spread | None) -> Number:
    return speed_number(key, side.label, spread.median if spread else _live(side, lambda live: live.decode_speed))


def _acceptance(sides: Sides, verdict: Verdict | None) -> Number:
    at = 0 if sides[0].num_steps or not sides[1].num_steps else 1
    length, rate = (
        _live(sides[at], lambda live: live.acceptance_length),
        _live(sides[at], lambda live: live.acceptance_rate),
    )
    if verdict is not None:
        length, rate = _median(verdict.acceptance_lengths[at]), _median(verdict.acceptance_rates[at])
    number = acceptance_length_number(length)
    return number if rate is None else replace(number, label=f"{number.label} · {format_share(rate)} accepted")


def _saved(verdict: Verdict | None) -> Number:
    seconds = _median(verdict.saved_seconds) if verdict else None
    if seconds is None:
        return Number("saved", DASH, "saved", SAVED_TIP)
    tone, label = ("slower", "lost on this reply") if seconds < 0 else ("plain", "saved on this reply")
    return Number("saved", f"{abs(seconds):.1f} s", label, SAVED_TIP, "slower" if tone == "slower" else "plain")


def _ttft(sides: Sides, verdict: Verdict | None) -> Number:
    left, right = (_live(side, lambda live: live.ttft) for side in sides)
    if verdict is not None:
        left, right = (_median(spread) for spread in verdict.ttfts)
    number = ttft_number(left)
    return replace(number, label=f"{number.label} · {sides[1].label} {format_seconds(right)}")


def _outputs(sides: Sides, verdict: Verdict | None) -> Number:
    if verdict is None or not verdict.trials:
        return Number("outputs", DASH, "outputs", OUTPUTS_TIP)
    exact = all(side.panel is not None and side.panel.view.exactness is Exactness.EXACT for side in sides)
    labels = "labels exact" if exact else "labels not all certain"
    if verdict.difference is not None:
        return Number("outputs", "differ", f"from token {verdict.difference.index + 1} · {labels}", OUTPUTS_TIP)
    if verdict.same is None:
        return Number("outputs", DASH, f"outputs not comparable · {labels}", OUTPUTS_TIP)
    return Number("outputs", "same", f"outputs identical · {labels}", OUTPUTS_TIP)


def _live(side: Side, read: Callable[[RunNumbers], float | None]) -> float | None:
    return read(side.panel.numbers) if side.panel else None


def _median(spread: Spread | None) -> float | None:
    return spread.median if spread else None
