"""What the replay of a recording shows: its panels, numbers, curves, steps and verdict. Knows no component."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from backend import metrics
from backend.comparison import Trial, Verdict, judge
from backend.errors import RecordingError
from backend.events import Run
from backend.playback import list_steps, ran_at_once
from backend.recording import Recording
from ui.charts import Arrivals, Chart, SpeedLine, progress_chart
from ui.compare_charts import Side, Sides
from ui.compare_numbers import compare_numbers
from ui.compare_verdict import Report, list_lane_warnings, report
from ui.numbers import (
    Number,
    acceptance_length_number,
    acceptance_rate_number,
    format_seconds,
    format_speed,
    speed_number,
    ttft_number,
)
from ui.panel import PanelUpdate, measure
from ui.replay_steps import show_step
from ui.token_stream import StreamView

MAX_SHOWN_TOKENS = 20_000  # in all runs together; a page with more would stand still
ALONE = Arrivals("", (), True)


@dataclass(frozen=True)
class Replay:
    """A recording ready to be shown. `panels` are its runs', in order; `player` is JSON for `assets/js/replay.js`."""

    panels: tuple[PanelUpdate, ...]
    numbers: Sequence[Number]
    report: Report
    player: str


def show_recording(recording: Recording, name: str, elements: Sequence[str]) -> Replay:
    """The recording as it is shown in the page elements of these ids. `name` is unique to this opening of it.

    Raises RecordingError where it is too long for a page.
    """
    total = sum(len(run.tokens) for run in recording.runs)
    if total > MAX_SHOWN_TOKENS:
        raise RecordingError(
            f"This recording has {total:,} tokens; the page shows at most {MAX_SHOWN_TOKENS:,}. Record a shorter reply."
        )
    if total == 0:
        raise RecordingError("This recording holds no token. Record a reply that came through.")
    panels = tuple(_show_run(recording, at, name) for at in range(len(recording.runs)))
    verdict = _judge(recording)
    return Replay(
        panels=panels,
        numbers=_show_numbers(recording, panels, verdict),
        report=_report(recording, verdict),
        player=_encode_player(recording, panels, name, elements),
    )


def _show_run(recording: Recording, at: int, name: str) -> PanelUpdate:
    run = recording.runs[at]
    numbers = measure(run.tokens, run)
    stats = (
        f"{len(run.tokens)} tokens",
        f"{format_speed(numbers.decode_speed)} tokens/s",
        f"TTFT {format_seconds(numbers.ttft)}",
        format_seconds(run.tokens[-1].arrived if run.tokens else None),
    )
    view = StreamView(
        run=f"{name}-{at}",
        title=run.lane,
        stats=" · ".join(stats),
        tokens=run.tokens,
        chunks=run.chunks,
        exactness=run.exactness,
        done=True,
        vocabulary=recording.words,
    )
    seconds, speeds = metrics.speed_over_time(run.tokens)
    return PanelUpdate(
        view=view,
        numbers=numbers,
        speed=SpeedLine(run.lane, seconds, speeds, numbers.decode_speed),
        arrivals=_arrivals(run),
        run=run,
    )


def _arrivals(run: Run) -> Arrivals:
    return Arrivals(run.lane, [token.arrived for token in run.tokens], True)


def _are_comparable(runs: Sequence[Run]) -> bool:
    """Whether a speedup between these runs means something: two, the same prompt ids, drawn the same way."""
    return len(runs) == 2 and len({(run.request.prompt_ids, run.request.sampling) for run in runs}) == 1


def _judge(recording: Recording) -> Verdict | None:
    runs = recording.runs
    if not _are_comparable(runs):
        return None
    verdict = judge([Trial(runs[0], runs[1])], keep_speedup=not ran_at_once(runs))
    return verdict if verdict.trials else None


def _show_numbers(recording: Recording, panels: Sequence[PanelUpdate], verdict: Verdict | None) -> list[Number]:
    if len(panels) == 2:
        left, right = (Side(run.lane, run.num_steps, panel) for run, panel in zip(recording.runs, panels, strict=True))
        sides: Sides = (left, right)
        return compare_numbers(sides, verdict, is_show=ran_at_once(recording.runs))
    run, numbers = recording.runs[0], panels[0].numbers
    return [
        speed_number("left-speed", run.lane, numbers.decode_speed),
        ttft_number(numbers.ttft),
        acceptance_length_number(numbers.acceptance_length),
        acceptance_rate_number(numbers.acceptance_rate),
    ]


def _report(recording: Recording, verdict: Verdict | None) -> Report:
    runs = recording.runs
    problems = [f"{run.lane}: {run.error}" for run in runs if run.error]
    warnings = list_lane_warnings(runs, [], problems)
    if verdict is None:
        if len(runs) == 2:
            warnings = (*warnings, "The two runs cannot be compared: their prompts, settings or ends differ.")
        return Report(warnings=warnings)
    at_once = ran_at_once(runs)
    how = "both lanes at the same time" if at_once else "one lane after the other"
    return report(verdict, is_show=at_once, is_race=at_once, warnings=warnings, order=f"{_say_when(recording)}, {how}.")


def _say_when(recording: Recording) -> str:
    try:
        day = datetime.fromtimestamp(recording.runs[0].started_at, UTC)
    except (ValueError, OverflowError, OSError):
        return "Recorded at an unknown time"
    return f"Recorded on {day:%-d %B %Y}"


def _encode_player(recording: Recording, panels: Sequence[PanelUpdate], name: str, elements: Sequence[str]) -> str:
    lanes = [
        {
            "element": element,
            "name": run.lane,
            "drafts": run.num_steps > 0,
            "steps": [asdict(show_step(step, run.num_steps, recording.words)) for step in list_steps(run)],
        }
        for run, element in zip(recording.runs, elements, strict=False)
    ]
    chart = _draw_progress(panels)
    value = {
        "name": name,
        "title": recording.title,
        "about": f"{_say_when(recording)} with EagleLens {recording.app_version}",
        "seconds": round(max(panel.arrivals.seconds[-1] for panel in panels if panel.arrivals.seconds), 4),
        "lanes": lanes,
        "chart": {**asdict(chart), "description": chart.description},
    }
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _draw_progress(panels: Sequence[PanelUpdate]) -> Chart:
    left, right = (panels[0].arrivals, panels[1].arrivals) if len(panels) == 2 else (panels[0].arrivals, ALONE)
    return progress_chart(left, right)
