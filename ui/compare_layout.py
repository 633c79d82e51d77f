"""The layout of the Compare tab: its components, nothing that happens in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr

from ui.charts import LensChart
from ui.compare_charts import (
    Side,
    Sides,
    accepted_strip,
    compare_accepted,
    compare_places,
    compare_progress,
    compare_speeds,
)
from ui.compare_numbers import compare_numbers
from ui.compare_run import FAIR, RACE
from ui.compare_verdict import VerdictCard
from ui.engines import BASELINE_LABEL, EAGLE_LABEL
from ui.limits import MAX_PROMPT_CHARACTERS, MAX_REPLY_TOKENS, MAX_TRIALS
from ui.live_runs import LiveRuns
from ui.modes import load_modes
from ui.numbers import Numbers
from ui.photo_finish import PhotoFinish
from ui.presets import Preset
from ui.token_stream import EMPTY_VIEW, StreamView, TokenStream

LEFT, RIGHT = "compare-left", "compare-right"
EMPTY_SIDES: Sides = (Side(EAGLE_LABEL, 1), Side(BASELINE_LABEL, 0))
FAIR_HINT = "Each lane runs alone, after a warm-up and with an empty prefix cache; then both replay at true pace."
RACE_HINT = "Both lanes run at once. On shared hardware they slow each other down: a show, and no speedup is kept."


@dataclass(frozen=True)
class CompareTab:
    """The components of the tab."""

    prompt: gr.Textbox
    go: gr.Button
    stop: gr.Button
    mode: gr.Radio
    pace: gr.Radio
    presets: gr.Dataset
    trials: gr.Slider
    max_tokens: gr.Slider
    temperature: gr.Slider
    top_p: gr.Slider
    system: gr.Textbox
    own_devices: gr.Checkbox
    flush: gr.Checkbox
    notice: gr.Markdown
    progress: gr.Markdown
    numbers: Numbers
    left: TokenStream
    right: TokenStream
    finish: PhotoFinish
    speeds: LensChart
    counts: LensChart
    accepted: LensChart
    strip: LensChart
    places: LensChart
    verdict: VerdictCard
    save: gr.DownloadButton
    current: gr.State

    def settings(self) -> list[Any]:
        """The components behind `CompareSettings`, in its order."""
        return [
            self.mode,
            self.pace,
            self.trials,
            self.max_tokens,
            self.temperature,
            self.top_p,
            self.system,
            self.own_devices,
            self.flush,
        ]

    def board(self) -> list[Any]:
        """Everything but the two panels that a comparison changes."""
        return [
            self.go,
            self.stop,
            self.notice,
            self.progress,
            self.numbers,
            self.speeds,
            self.counts,
            self.accepted,
            self.strip,
            self.places,
            self.verdict,
            self.finish,
            self.save,
        ]


def lay_out_compare(presets: Sequence[Preset], live_runs: LiveRuns) -> CompareTab:
    """Make the components inside the current context."""
    modes = load_modes()
    first = next(iter(modes.values()))
    with gr.Row(elem_classes="lens-ask"):
        prompt = gr.Textbox(
            placeholder="One prompt for both lanes",
            show_label=False,
            lines=2,
            max_lines=8,
            max_length=MAX_PROMPT_CHARACTERS,
            elem_id="compare-prompt",
            scale=6,
        )
        go = gr.Button("Compare", variant="primary", elem_id="compare-go", scale=1, min_width=112)
        stop = gr.Button("Stop", variant="stop", elem_id="compare-stop", scale=1, min_width=96, interactive=False)
    choice: dict[str, Any] = {"show_label": False, "container": False}
    with gr.Row(elem_classes="lens-choices"):
        mode = gr.Radio(list(modes), value=first.name, elem_id="compare-mode", min_width=220, **choice)
        pace = gr.Radio([FAIR, RACE], value=FAIR, elem_id="compare-pace", min_width=320, **choice)
    examples = gr.Dataset(
        components=[gr.Textbox(visible=False)],
        samples=[[preset.name] for preset in presets],
        label="Prompts of different predictability",
        type="index",
        elem_id="compare-presets",
    )
    with gr.Accordion("Settings", open=False, elem_id="compare-settings"):
        with gr.Row():
            trials = gr.Slider(
                1,
                MAX_TRIALS,
                1,
                step=1,
                elem_id="compare-trials",
                label="Trials",
                info="More than one: median and range.",
            )
            max_tokens = gr.Slider(1, MAX_REPLY_TOKENS, first.max_tokens, step=1, label="Longest reply, in tokens")
            temperature = gr.Slider(0, 2, 0, step=0.05, label="Temperature", info="0 is greedy.")
            top_p = gr.Slider(0.05, 1, 1, step=0.05, label="top_p")
        system = gr.Textbox(first.system, label="System prompt", lines=2, max_lines=6, elem_id="compare-system")
        own_devices = gr.Checkbox(
            False,
            label="Each lane has a device of its own",
            info="Then a race disturbs neither, and its speedup is kept.",
            elem_id="compare-own-devices",
        )
        flush = gr.Checkbox(
            False,
            label="Empty the prefix caches of attached servers before each run",
            info="Off: a unique cache salt keeps the runs out of the cache, which disturbs nobody else there.",
            elem_id="compare-flush",
        )
    notice = gr.Markdown(visible=False, elem_id="compare-notice", elem_classes="banner")
    numbers = Numbers(compare_numbers(EMPTY_SIDES, None), elem_id="compare-numbers")
    progress = gr.Markdown(FAIR_HINT, elem_id="compare-progress", elem_classes="lens-progress")
    with gr.Row(elem_classes="lens-panels"):
        with gr.Column(min_width=320):
            left = TokenStream(_empty_view(EAGLE_LABEL), whole=live_runs.whole, elem_id=LEFT)
        with gr.Column(min_width=320):
            right = TokenStream(_empty_view(BASELINE_LABEL), whole=live_runs.whole, elem_id=RIGHT)
    finish = PhotoFinish(elem_id="compare-finish")
    with gr.Row(elem_classes="lens-charts"):
        speeds, counts = (
            LensChart(chart(EMPTY_SIDES), elem_id=name, min_width=320)
            for chart, name in ((compare_speeds, "compare-speeds"), (compare_progress, "compare-counts"))
        )
    with gr.Row(elem_classes="lens-charts"):
        accepted, strip, places = (
            LensChart(chart(EMPTY_SIDES), elem_id=name, min_width=280)
            for chart, name in (
                (compare_accepted, "compare-accepted"),
                (accepted_strip, "compare-strip"),
                (compare_places, "compare-places"),
            )
        )
    verdict = VerdictCard(elem_id="compare-verdict")
    save = gr.DownloadButton("Save recording", elem_id="compare-save", interactive=False, size="sm")
    return CompareTab(
        prompt=prompt,
        go=go,
        stop=stop,
        mode=mode,
        pace=pace,
        presets=examples,
        trials=trials,
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        system=system,
        own_devices=own_devices,
        flush=flush,
        notice=notice,
        progress=progress,
        numbers=numbers,
        left=left,
        right=right,
        finish=finish,
        speeds=speeds,
        counts=counts,
        accepted=accepted,
        strip=strip,
        places=places,
        verdict=verdict,
        save=save,
        current=gr.State(""),
    )


def _empty_view(label: str) -> StreamView:
    return replace(EMPTY_VIEW, title=label)
