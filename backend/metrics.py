"""Arrival times and counters -> the numbers on the screen. Pure. None where there is no number: show a dash."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from backend.attribution import find_cut
from backend.events import Counters, Source, Token

__all__ = [
    "SPEED_WINDOW",
    "Spread",
    "acceptance_by_place",
    "acceptance_length",
    "acceptance_rate",
    "accepted_per_step",
    "count_histogram",
    "cumulative_tokens",
    "decode_speed",
    "find_cut",
    "first_difference",
    "saved_seconds",
    "sglang_accept_length",
    "speed_over_time",
    "speedup",
    "summarise",
    "ttft",
]

SPEED_WINDOW = 0.5  # seconds


@dataclass(frozen=True)
class Spread:
    """Repeats of one number: the middle one, the lowest, the highest, and how many there were."""

    median: float
    low: float
    high: float
    count: int


def ttft(tokens: Sequence[Token]) -> float | None:
    """Time to first token: seconds from sending the request to the arrival of the first token of any kind."""
    return tokens[0].arrived if tokens else None


def decode_speed(tokens: Sequence[Token]) -> float | None:
    """Tokens per second after the first: (N - 1) / (t_last - t_first). None for one token or one chunk."""
    if len(tokens) < 2 or tokens[-1].arrived <= tokens[0].arrived:
        return None
    return (len(tokens) - 1) / (tokens[-1].arrived - tokens[0].arrived)


def acceptance_length(counters: Counters | None) -> float | None:
    """Tokens that a verify step yields: (A + V) / V, the accepted drafts and the target's own. None without a step."""
    if counters is None or not counters.verify_steps or counters.accepted is None:
        return None
    return (counters.accepted + counters.verify_steps) / counters.verify_steps


def acceptance_rate(counters: Counters | None, num_steps: int) -> float | None:
    """Share of the drafts of a chain that were accepted: A / (V * num_steps). None without a verify step."""
    if counters is None or not counters.verify_steps or counters.accepted is None or num_steps <= 0:
        return None
    return counters.accepted / (counters.verify_steps * num_steps)


def sglang_accept_length(counters: Counters | None) -> float | None:
    """SGLang's own acceptance length, N / V: it counts the prefill's token and misses what was cut."""
    if counters is None or not counters.verify_steps:
        return None
    return counters.completion_tokens / counters.verify_steps


def speedup(speed: float | None, baseline: float | None) -> float | None:
    """Decode speed with the draft / decode speed of the baseline; below 1 is a slowdown."""
    return None if speed is None or not baseline else speed / baseline


def saved_seconds(tokens: Sequence[Token], baseline: float | None) -> float | None:
    """Seconds that decoding these tokens at the baseline's speed would have taken longer; negative where less."""
    if decode_speed(tokens) is None or not baseline:
        return None
    return (len(tokens) - 1) / baseline - (tokens[-1].arrived - tokens[0].arrived)


def speed_over_time(
    tokens: Sequence[Token], window: float = SPEED_WINDOW
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Tokens per second in one window after another: (seconds since sending, speeds), of equal length.

    `speeds[i]` holds from `seconds[i - 1]` to `seconds[i]`; the first entry marks the first token and repeats the
    first speed. Tokens are counted, not chunks: those of a chunk are spread over the time since the one before. So
    the area under the curve is N - 1, the tokens after the first, and its mean is the decode speed.
    """
    if decode_speed(tokens) is None:
        return (), ()
    times, counts = _count_arrivals(tokens)
    edges = _cut_windows(times[0], times[-1], window)
    totals = [_interpolate(times, counts, edge) for edge in edges]
    speeds = [(totals[at + 1] - totals[at]) / (edges[at + 1] - edges[at]) for at in range(len(edges) - 1)]
    return tuple(edges), (speeds[0], *speeds)


def cumulative_tokens(tokens: Sequence[Token]) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """How many tokens had come by when: (seconds since sending, tokens), one entry per arrival."""
    seconds: list[float] = []
    totals: list[int] = []
    for total, token in enumerate(tokens, start=1):
        if seconds and seconds[-1] == token.arrived:
            totals[-1] = total
        else:
            seconds.append(token.arrived)
            totals.append(total)
    return tuple(seconds), tuple(totals)


def accepted_per_step(tokens: Sequence[Token]) -> tuple[int, ...] | None:
    """Drafts kept in each verify step, in order; None where a merged chunk hides a step, or there is none.

    Drafts cut behind the stop do not count here; the engine's histogram counts them.
    """
    kept: list[int] = []
    for token in tokens:
        step = token.step
        if step is None or token.source is Source.UNCERTAIN:
            return None
        if step > len(kept):
            kept.extend([0] * (step - len(kept)))
        if step and token.source is Source.DRAFT:
            kept[step - 1] += 1
    return tuple(kept) if kept else None


def count_histogram(accepted: Sequence[int], num_steps: int) -> tuple[int, ...]:
    """[k] = verify steps that accepted k drafts, for k from 0 to `num_steps`."""
    return tuple(sum(1 for drafts in accepted if drafts == k) for k in range(num_steps + 1))


def acceptance_by_place(histogram: Sequence[int] | None) -> tuple[float, ...] | None:
    """Share of verify steps whose draft at each place, the first to the last, was accepted. None without a step."""
    steps = sum(histogram or ())
    if histogram is None or steps == 0:
        return None
    return tuple(sum(histogram[place:]) / steps for place in range(1, len(histogram)))


def first_difference(ids: Sequence[int], others: Sequence[int]) -> int | None:
    """Index of the first token that differs, or where the shorter one ends; None where both are the same."""
    for index, (one, other) in enumerate(zip(ids, others, strict=False)):
        if one != other:
            return index
    return None if len(ids) == len(others) else min(len(ids), len(others))


def summarise(values: Sequence[float | None]) -> Spread | None:
    """Median and range of repeats, those without a number left out; None where none has one."""
    known = [value for value in values if value is not None]
    return Spread(median(known), min(known), max(known), len(known)) if known else None


def _count_arrivals(tokens: Sequence[Token]) -> tuple[list[float], list[float]]:
    """Arrival times in order and the tokens there by then; the first token stands alone at the first time."""
    times = [tokens[0].arrived]
    counts = [1.0]
    for total, token in enumerate(tokens[1:], start=2):
        if token.arrived > times[-1]:
            times.append(token.arrived)
            counts.append(total)
        elif len(times) > 1:
            counts[-1] = total
    return times, counts


def _cut_windows(begin: float, end: float, window: float) -> list[float]:
    """Edges of whole windows from `begin` on; a rest of less than half a window joins the last one."""
    whole = max(1, int((end - begin) / window + 0.5))
    return [*(begin + window * at for at in range(whole)), end]


def _interpolate(times: Sequence[float], counts: Sequence[float], at: float) -> float:
    after = bisect_right(times, at)
    if after >= len(times):
        return counts[-1]
    begin, end = times[after - 1], times[after]
    return counts[after - 1] + (counts[after] - counts[after - 1]) * (at - begin) / (end - begin)
