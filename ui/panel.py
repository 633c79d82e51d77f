"""One lane's run as its panel shows it: drives the request and turns what arrives into views, numbers and curves."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from backend import metrics
from backend.client import stream_run
from backend.events import Counters, Exactness, Request, Run, Token
from backend.lanes import Lane
from ui.charts import Arrivals, SpeedLine
from ui.live_runs import LiveRuns
from ui.numbers import format_seconds, format_speed
from ui.progress import Progress, follow
from ui.token_stream import StreamView


@dataclass(frozen=True)
class PanelUpdate:
    """What a panel shows at one moment. `run` is there once the run has ended."""

    view: StreamView
    numbers: RunNumbers
    speed: SpeedLine
    arrivals: Arrivals
    run: Run | None


@dataclass(frozen=True)
class RunNumbers:
    """The figures of one run, None where there is none. Acceptance needs the engine's own counters."""

    decode_speed: float | None
    ttft: float | None
    acceptance_length: float | None
    acceptance_rate: float | None
    counters: Counters | None


async def stream_panel(lane: Lane, request: Request, live_runs: LiveRuns) -> AsyncGenerator[PanelUpdate, None]:
    """Send `request` to `lane` and yield what its panel shows, at the page's pace; the last update is complete.

    Closing this generator aborts the request.
    """
    live = live_runs.begin(StreamView(request.rid, lane.label, "", (), (), Exactness.PROVISIONAL, False))
    try:
        async with aclosing(follow(stream_run(lane, request, stop=live.stop))) as progresses:
            async for progress in progresses:
                update = describe(lane, request.rid, progress)
                live.view = update.view
                yield update
    finally:
        live.ended.set()


def describe(lane: Lane, rid: str, progress: Progress) -> PanelUpdate:
    """The panel of a run as far as it has come."""
    run = progress.run
    numbers = measure(progress.tokens, run)
    view = StreamView(
        run=rid,
        title=lane.label,
        stats=_say_stats(progress, numbers),
        tokens=progress.tokens,
        chunks=progress.chunks,
        exactness=run.exactness if run else Exactness.PROVISIONAL,
        done=run is not None,
        vocabulary=lane.vocabulary,
    )
    seconds, speeds = metrics.speed_over_time(progress.tokens)
    return PanelUpdate(
        view=view,
        numbers=numbers,
        speed=SpeedLine(lane.label, seconds, speeds, numbers.decode_speed),
        arrivals=Arrivals(lane.label, [token.arrived for token in progress.tokens], view.done),
        run=run,
    )


def measure(tokens: Sequence[Token], run: Run | None) -> RunNumbers:
    """The figures so far; those from the engine's counters come with the end."""
    counters = run.counters if run else None
    return RunNumbers(
        decode_speed=metrics.decode_speed(tokens),
        ttft=metrics.ttft(tokens),
        acceptance_length=metrics.acceptance_length(counters),
        acceptance_rate=metrics.acceptance_rate(counters, run.num_steps if run else 0),
        counters=counters,
    )


def _say_stats(progress: Progress, numbers: RunNumbers) -> str:
    if not progress.tokens and progress.run is None:
        return f"reading the prompt · {progress.waited:.1f} s"
    last = progress.tokens[-1].arrived if progress.tokens else None
    return " · ".join(
        (
            f"{len(progress.tokens)} tokens",
            f"{format_speed(numbers.decode_speed)} tokens/s",
            f"TTFT {format_seconds(numbers.ttft)}",
            format_seconds(last),
        )
    )
