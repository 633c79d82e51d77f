"""A sweep: the same reply with 0, 1, 2, … drafts a verify step, and which of them is fastest. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from backend import metrics
from backend.events import Run
from backend.metrics import Spread

MOST_STEPS = 5
FINISHED = ("stop", "length")


@dataclass(frozen=True)
class SweepPoint:
    """What was measured with `num_steps` drafts a verify step. `speed` is the decode speed, in tokens per second."""

    num_steps: int
    speed: Spread
    acceptance_length: float | None


@dataclass(frozen=True)
class Finding:
    """The fastest point, and its decode speed / that of the point without a draft."""

    best: SweepPoint
    speedup: float


def plan_sweep(most: int, repeats: int) -> tuple[int, ...]:
    """The number of drafts of each run, in the order of the runs: up, down, up, …

    A machine that slows down or speeds up meanwhile then moves both ends alike.
    """
    up = tuple(range(most + 1))
    return tuple(steps for repeat in range(repeats) for steps in (up if repeat % 2 == 0 else up[::-1]))


def summarise_points(runs: Mapping[int, Sequence[Run]]) -> tuple[SweepPoint, ...]:
    """A point for each number of drafts that has a finished run with at least two tokens, in ascending order."""
    points = []
    for num_steps in sorted(runs):
        finished = [run for run in runs[num_steps] if run.error is None and run.finish_reason in FINISHED]
        speed = metrics.summarise([metrics.decode_speed(run.tokens) for run in finished])
        if speed is not None:
            points.append(SweepPoint(num_steps, speed, pool_acceptance_length(finished, num_steps)))
    return tuple(points)


def pool_acceptance_length(runs: Sequence[Run], num_steps: int) -> float | None:
    """(A + V) / V over all verify steps of `runs`; 1 without a draft, where each forward yields one token."""
    if num_steps == 0:
        return 1.0
    counted = [run.counters for run in runs if run.counters is not None]
    steps = sum(counters.verify_steps or 0 for counters in counted)
    accepted = sum(counters.accepted or 0 for counters in counted)
    return (accepted + steps) / steps if steps else None


def find_best(points: Sequence[SweepPoint]) -> Finding | None:
    """The point of the highest median decode speed; None until the one without a draft is there to compare with."""
    plain = next((point for point in points if point.num_steps == 0), None)
    if plain is None or len(points) < 2:
        return None
    best = max(points, key=lambda point: point.speed.median)
    return Finding(best, best.speed.median / plain.speed.median)


def find_rivals(points: Sequence[SweepPoint]) -> tuple[int, ...]:
    """The numbers of drafts whose fastest run is no slower than the slowest of the best one's: too close to call."""
    if not points:
        return ()
    best = max(points, key=lambda point: point.speed.median)
    return tuple(point.num_steps for point in points if point is not best and point.speed.high >= best.speed.low)


def replies_differ(runs: Mapping[int, Sequence[Run]]) -> bool:
    """Whether any two finished greedy replies differ, so that the points are not of the same text."""
    replies = {
        tuple(token.id for token in run.tokens)
        for several in runs.values()
        for run in several
        if run.error is None and run.finish_reason in FINISHED
    }
    return len(replies) > 1
