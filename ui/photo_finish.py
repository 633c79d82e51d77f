"""Photo finish: both replies of a comparison played from t = 0 at the pace at which they came."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gradio as gr

from backend.events import Run
from ui.resources import read_resource


@dataclass(frozen=True)
class Finish:
    """What is played: `runs` by the element id of the panel that shows each. `autoplay`: start without being asked."""

    name: str
    runs: Mapping[str, Run]
    autoplay: bool

    @property
    def seconds(self) -> float:
        """How long it takes, to the last token of the slower run, in the four digits that the panels know.

        A slider drops the last digits of a float, and could then never be drawn to its end.
        """
        return round(max((run.tokens[-1].arrived for run in self.runs.values() if run.tokens), default=0.0), 4)


class PhotoFinish(gr.HTML):
    """The controls of a photo finish; hidden while there is nothing to play."""

    def __init__(self, value: Finish | None = None, **props: Any) -> None:
        super().__init__(
            value,
            html_template=read_resource("html/photo_finish.html"),
            js_on_load=read_resource("js/playback.js") + read_resource("js/photo_finish.js"),
            apply_default_css=False,
            **props,
        )

    def postprocess(self, value: Finish | None) -> str | None:  # type: ignore[override]
        if value is None:
            return None
        panels = [{"id": panel, "run": run.request.rid} for panel, run in value.runs.items()]
        return json.dumps({"name": value.name, "panels": panels, "seconds": value.seconds, "autoplay": value.autoplay})
