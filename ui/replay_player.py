"""The player of the Replay tab: plays a recording at true pace or slower, and explains its steps."""

from __future__ import annotations

from typing import Any

import gradio as gr

from ui.resources import read_resource

PLAYER_SCRIPTS = ("js/playback.js", "js/replay_chart.js", "js/replay.js")


def read_player_script() -> str:
    """What `assets/html/replay.html` is brought to life with, as one script."""
    return "\n".join(map(read_resource, PLAYER_SCRIPTS))


class ReplayPlayer(gr.HTML):
    """Takes `Replay.player`; hidden while there is nothing to play. Model text becomes text nodes, never markup."""

    def __init__(self, value: str | None = None, **props: Any) -> None:
        super().__init__(
            value,
            html_template=read_resource("html/replay.html"),
            js_on_load=read_player_script(),
            apply_default_css=False,
            **props,
        )
