"""A dated baseline in the place of a lane that has no room: labelled with the day it was measured."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from backend.events import Run
from backend.lanes import Lane
from ui.panel import PanelUpdate, describe
from ui.progress import Progress

NOT_MEASURED = (
    "This app has no baseline server now, and none of this prompt with these settings was measured before. "
    "Where the two take turns, the Backend tab measures one; else start the app with --baseline-url."
)


def say_when(run: Run) -> str:
    """The moment a run was measured, as it stands on the screen."""
    return f"{datetime.fromtimestamp(run.started_at, UTC):%-d %b %Y %H:%M} UTC"


def label_dated(run: Run) -> Run:
    """The run under a label that carries its date, for every place where lanes are named."""
    return replace(run, lane=f"{run.lane} of {say_when(run)}")


def make_dated_lane(run: Run) -> Lane:
    """The lane of a labelled run; nothing answers at it."""
    model = str(run.server.get("served_model_name") or run.server.get("model_path") or "")
    return Lane(run.lane, "", model, num_steps=run.num_steps, facts=run.server)


def show_dated(lane: Lane, run: Run) -> PanelUpdate:
    """The panel of the run, complete."""
    return describe(lane, run.request.rid, Progress(tokens=run.tokens, chunks=run.chunks, run=run))


def say_dated_order(run: Run, trials: int) -> str:
    """When each lane ran."""
    count = "1 trial" if trials == 1 else f"{trials} trials"
    return (
        f"{count} of the first lane, measured now after a warm-up, against one baseline run measured on "
        f"{say_when(run)}: the two take turns on this hardware."
    )
