"""The choice of how many drafts a verify step one reply is written with, where the engine takes such a wish."""

from __future__ import annotations

import gradio as gr

from backend.lanes import Lane

AS_ENGINE = -1  # the engine's own number


def build_draft_length() -> gr.Dropdown:
    """The choice, hidden until an engine is known that takes it."""
    return gr.Dropdown(
        [("the engine's default", AS_ENGINE)],
        value=AS_ENGINE,
        label="Drafts per verify step",
        info="For the next replies. 0 switches the draft off.",
        visible=False,
        elem_id="chat-num-steps",
    )


def offer_draft_lengths(lane: Lane | None) -> gr.Dropdown:
    """The choice as this lane takes it."""
    if lane is None or not lane.max_num_steps:
        return gr.Dropdown([("the engine's default", AS_ENGINE)], value=AS_ENGINE, visible=False)
    numbers = [("0: draft off", 0), *((str(number), number) for number in range(1, lane.max_num_steps + 1))]
    return gr.Dropdown(
        [(f"the engine's default ({lane.num_steps})", AS_ENGINE), *numbers], value=AS_ENGINE, visible=True
    )
