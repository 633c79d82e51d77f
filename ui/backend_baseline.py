"""Measure baseline now: for a pair whose two servers take turns, on the Backend tab, for the person at this machine."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

import gradio as gr

from backend import metrics
from backend.events import Sampling
from backend.kept_baselines import KeptBaselines
from backend.recording import Recording
from backend.sglang.baseline_turn import BaselineTurn, Question, TurnState
from backend.sglang.pair_launch import PairLaunch
from ui.conversation import to_messages
from ui.limits import MAX_PROMPT_CHARACTERS
from ui.modes import load_modes
from ui.numbers import format_speed
from ui.presets import load_presets
from ui.visitor import is_local

LOOK_INTERVAL = 2.0  # seconds
SHOWN = 12  # dated baselines in the list
ABOUT = (
    "This pair takes turns: the baseline has no room beside EAGLE-3. Measuring stops EAGLE-3, starts the baseline, "
    "times each prompt once behind a warm-up, and starts EAGLE-3 again; nobody gets a reply meanwhile. What was "
    "measured is kept with its date, and Compare uses it for the same prompt and settings."
)
HIDDEN: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}


def build_baseline_card(tab: gr.Tab, kept: KeptBaselines, launch: PairLaunch) -> None:
    """Lay out the card inside the current context and wire it."""
    names = [preset.name for preset in load_presets()]
    turn = BaselineTurn(kept, launch.plan.api_key)
    with gr.Group(elem_id="backend-measure"):
        gr.Markdown(ABOUT, padding=True)
        chosen = gr.CheckboxGroup(names, value=names, label="Prompts of the Compare tab", elem_id="backend-presets")
        mode = gr.Radio(list(load_modes()), value=next(iter(load_modes())), label="Mode of your own prompt")
        own = gr.Textbox(
            label="A prompt of your own",
            lines=2,
            max_lines=6,
            max_length=MAX_PROMPT_CHARACTERS,
            elem_id="backend-own-prompt",
        )
        go = gr.Button("Measure the baseline now", elem_id="backend-measure-go")
    shown = gr.HTML(elem_id="backend-kept", apply_default_css=False)
    clock = gr.Timer(LOOK_INTERVAL, active=False)

    def look(request: gr.Request) -> tuple[Any, Any]:
        if not is_local(request):
            return gr.skip(), gr.skip()
        state = turn.state
        return render_kept(state, kept.list_newest(SHOWN)), gr.Timer(active=state.phase == "running")

    def measure(presets: Sequence[str], mode: str, prompt: str, request: gr.Request) -> tuple[Any, Any]:
        if is_local(request) and launch.servers is not None:
            turn.start(launch.servers, list_questions(presets, mode, prompt))
        return look(request)

    go.click(measure, [chosen, mode, own], [shown, clock], **HIDDEN)
    gr.on([tab.select, clock.tick], look, None, [shown, clock], concurrency_limit=None, **HIDDEN)


def list_questions(presets: Sequence[str], mode: str, prompt: str) -> tuple[Question, ...]:
    """What to measure, greedily and with the limits that Compare suggests: the chosen presets, then the own prompt."""
    modes = load_modes()
    questions = [
        _ask(preset.name, modes[preset.mode].system, preset.prompt, preset.max_tokens)
        for preset in load_presets()
        if preset.name in presets
    ]
    if prompt.strip():
        questions.append(_ask(prompt.strip(), modes[mode].system, prompt, modes[mode].max_tokens))
    return tuple(questions)


def _ask(title: str, system: str, prompt: str, max_tokens: int) -> Question:
    return Question(
        title, [dict(message) for message in to_messages(system, (), prompt)], Sampling(max_tokens=max_tokens)
    )


def render_kept(state: TurnState, recordings: Sequence[Recording]) -> str:
    """How far the measurement is, and the dated baselines, as HTML; titles are escaped."""
    tone = {"failed": "trouble", "running": "lens-progress"}.get(state.phase, "")
    said = f'<p class="{tone}" role="status">{escape(state.message)}</p>' if state.message else ""
    if not recordings:
        return said
    rows = "".join(_render_row(recording) for recording in recordings)
    heads = "".join(f"<th>{head}</th>" for head in ("Measured on", "Prompt", "Model", "Tokens/s", "Tokens"))
    return (
        f'{said}<section class="card backend-published"><header class="card-head"><h3>Dated baselines</h3></header>'
        f"<div><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div></section>"
    )


def _render_row(recording: Recording) -> str:
    (run,) = recording.runs
    cells = (
        f"{datetime.fromtimestamp(run.started_at, UTC):%Y-%m-%d %H:%M} UTC",
        recording.title,
        str(run.server.get("model_path", "")),
        format_speed(metrics.decode_speed(run.tokens)),
        str(len(run.tokens)),
    )
    return f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
