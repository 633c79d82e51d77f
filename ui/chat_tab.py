"""The Chat tab: a conversation whose reply shows who produced each token, with its speed beside it."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, astuple, dataclass, field, fields
from pathlib import Path
from time import monotonic
from typing import Any

import gradio as gr

from ui.charts import LensChart, SpeedLine, accepted_chart, place_chart, speed_chart
from ui.chat_run import ChatSettings, ChatUpdate, ReferenceMeasurement, write_reply
from ui.conversation import Turn, find_turn, from_record, to_bubbles, to_record, with_reply
from ui.draft_length import AS_ENGINE, build_draft_length
from ui.engines import BASELINE_LABEL, EAGLE_LABEL, Engines
from ui.limits import MAX_PROMPT_CHARACTERS, MAX_REPLY_TOKENS, MAX_RUNNING
from ui.live_runs import LiveRuns
from ui.markdown import LATEX_DELIMITERS, escape_markup
from ui.modes import Mode, load_modes
from ui.numbers import (
    Number,
    Numbers,
    acceptance_length_number,
    acceptance_rate_number,
    speed_number,
    speedup_number,
    ttft_number,
)
from ui.panel import PanelUpdate
from ui.save_recording import write_recording
from ui.token_stream import EMPTY_VIEW, StreamView, TokenStream

CHART_INTERVAL = 0.1  # seconds between two redraws of the charts
RENDER_INTERVAL = 0.4  # seconds between two renderings of the growing Markdown
STOP_PATIENCE = 3.0  # seconds the engine gets to end a stopped run in order
# Keeps what the browser stores across restarts of the app; it hides nothing from the person at the browser.
STORE_SECRET = "eaglelens"
TOKENS_GONE = (
    "Who produced the tokens of this reply is no longer known: the app keeps that for its last replies, "
    "until it restarts. Retry writes it again."
)

Updates = dict[Any, Any]


@dataclass(frozen=True)
class ChatSession:
    """One visitor's conversation. `views` are the token views by turn, as far as the app still has them."""

    turns: tuple[Turn, ...] = ()
    views: Mapping[int, StreamView] = field(default_factory=dict)


@dataclass(frozen=True)
class ChatTab:
    """The components of the tab."""

    window: gr.Chatbot
    view: gr.Radio
    tokens: TokenStream
    prompt: gr.Textbox
    send: gr.Button
    stop: gr.Button
    retry: gr.Button
    edit: gr.Button
    clear: gr.Button
    save: gr.DownloadButton
    notice: gr.Markdown
    mode: gr.Radio
    examples: gr.Dataset
    system: gr.Textbox
    temperature: gr.Slider
    top_p: gr.Slider
    max_tokens: gr.Slider
    thinking: gr.Radio
    run_baseline: gr.Checkbox
    num_steps: gr.Dropdown
    numbers: Numbers
    speed: LensChart
    accepted: LensChart
    places: LensChart
    session: gr.State
    current: gr.State
    stored_settings: gr.BrowserState
    stored_turns: gr.BrowserState
    reference: gr.BrowserState

    def settings(self) -> list[Any]:
        """The components behind `ChatSettings`, in its order."""
        return [
            self.mode,
            self.system,
            self.temperature,
            self.top_p,
            self.max_tokens,
            self.thinking,
            self.run_baseline,
            self.view,
            self.num_steps,
        ]

    def shown(self) -> list[Any]:
        """Everything a reply changes."""
        return [
            self.window,
            self.tokens,
            self.prompt,
            self.send,
            self.stop,
            self.save,
            self.notice,
            self.numbers,
            self.speed,
            self.accepted,
            self.places,
            self.session,
            self.current,
            self.stored_turns,
            self.reference,
        ]


def build_chat_tab(page: gr.Blocks, engines: Engines, live_runs: LiveRuns) -> ChatTab:
    """Lay out the tab inside the current context and wire its events."""
    modes = load_modes()
    tab = _lay_out(modes, live_runs)
    _wire(page, tab, modes, engines, live_runs)
    return tab


def _lay_out(modes: Mapping[str, Mode], live_runs: LiveRuns) -> ChatTab:
    first = next(iter(modes.values()))
    with gr.Row(elem_classes="lens-columns"):
        with gr.Column(scale=3, min_width=320):
            numbers = Numbers(show_numbers(None, None), elem_id="chat-numbers")
            window = gr.Chatbot(
                elem_id="chat-window",
                show_label=False,
                height=None,
                max_height=420,
                latex_delimiters=LATEX_DELIMITERS,
                buttons=["copy", "copy_all"],
                feedback_options=None,
                placeholder="Ask something. Each token of the reply is marked by who produced it.",
                group_consecutive_messages=False,
            )
            tokens = TokenStream(EMPTY_VIEW, whole=live_runs.whole, elem_id="chat-tokens")
            notice = gr.Markdown(visible=False, elem_id="chat-notice", elem_classes="banner")
            mode = gr.Radio(
                list(modes), value=first.name, show_label=False, container=False, elem_id="chat-mode", min_width=200
            )
            with gr.Row(elem_classes="lens-ask"):
                prompt = gr.Textbox(
                    placeholder="Message; Enter sends",
                    show_label=False,
                    lines=1,
                    max_lines=8,
                    max_length=MAX_PROMPT_CHARACTERS,
                    elem_id="chat-prompt",
                    scale=6,
                    autofocus=True,
                )
                send = gr.Button("Send", variant="primary", elem_id="chat-send", scale=1, min_width=96)
                stop = gr.Button("Stop", variant="stop", elem_id="chat-stop", scale=1, min_width=96, interactive=False)
            with gr.Row(elem_classes="lens-tools"):
                retry = gr.Button("Retry", size="sm", elem_id="chat-retry", min_width=72)
                edit = gr.Button("Edit", size="sm", elem_id="chat-edit", min_width=72)
                clear = gr.Button("Clear", size="sm", elem_id="chat-clear", min_width=72)
                save = gr.DownloadButton(
                    "Save recording", size="sm", elem_id="chat-save", min_width=140, interactive=False
                )
                view = gr.Radio(
                    ["Tokens", "Rendered"],
                    value="Tokens",
                    show_label=False,
                    container=False,
                    elem_id="chat-view",
                    min_width=260,
                )
            examples = gr.Dataset(
                components=[gr.Textbox(visible=False)],
                samples=[[text] for text in first.examples],
                label="Examples",
                type="values",
                elem_id="chat-examples",
            )
        with gr.Column(scale=2, min_width=320):
            speed = LensChart(_empty_speed_chart(), elem_id="chat-speed")
            accepted = LensChart(accepted_chart(None), elem_id="chat-accepted")
            places = LensChart(place_chart(None), elem_id="chat-places")
            with gr.Accordion("Settings", open=False, elem_id="chat-settings"):
                run_baseline = gr.Checkbox(
                    True,
                    label="Run the baseline after each reply",
                    info="Off: the chart shows the last measured baseline as a dated line, and no speedup.",
                    elem_id="chat-run-baseline",
                )
                num_steps = build_draft_length()
                max_tokens = gr.Slider(1, MAX_REPLY_TOKENS, first.max_tokens, step=1, label="Longest reply, in tokens")
                temperature = gr.Slider(0, 2, 0, step=0.05, label="Temperature", info="0 is greedy.")
                top_p = gr.Slider(0.05, 1, 1, step=0.05, label="top_p")
                system = gr.Textbox(first.system, label="System prompt", lines=2, max_lines=6, elem_id="chat-system")
                thinking = gr.Radio(
                    ["the model's default", "on", "off"],
                    value="the model's default",
                    label="Thinking, for reasoning models",
                    info="Sets enable_thinking for the chat template.",
                )
    return ChatTab(
        window=window,
        view=view,
        tokens=tokens,
        prompt=prompt,
        send=send,
        stop=stop,
        retry=retry,
        edit=edit,
        clear=clear,
        save=save,
        notice=notice,
        mode=mode,
        examples=examples,
        system=system,
        temperature=temperature,
        top_p=top_p,
        max_tokens=max_tokens,
        thinking=thinking,
        run_baseline=run_baseline,
        num_steps=num_steps,
        numbers=numbers,
        speed=speed,
        accepted=accepted,
        places=places,
        session=gr.State(ChatSession()),
        current=gr.State(""),
        stored_settings=gr.BrowserState(None, storage_key="eaglelens.settings", secret=STORE_SECRET),
        stored_turns=gr.BrowserState(None, storage_key="eaglelens.turns", secret=STORE_SECRET),
        reference=gr.BrowserState(None, storage_key="eaglelens.baseline", secret=STORE_SECRET),
    )


def _empty_speed_chart() -> Any:
    return speed_chart(SpeedLine(EAGLE_LABEL, (), (), None), None)


def show_numbers(eagle: PanelUpdate | None, baseline: PanelUpdate | None) -> list[Number]:
    """The strip above a reply."""
    one = eagle.numbers if eagle else None
    other = baseline.numbers if baseline and baseline.run else None
    speedup, missing = None, "speedup"
    if eagle and eagle.run and eagle.run.num_steps == 0:
        missing = "the draft was off"
    elif eagle and eagle.run and one and other and one.decode_speed and other.decode_speed:
        speedup = one.decode_speed / other.decode_speed
    return [
        speedup_number(speedup, missing),
        speed_number("eagle-speed", EAGLE_LABEL, one.decode_speed if one else None),
        speed_number("baseline-speed", BASELINE_LABEL.lower(), other.decode_speed if other else None),
        ttft_number(one.ttft if one else None),
        acceptance_length_number(one.acceptance_length if one else None),
        acceptance_rate_number(one.acceptance_rate if one else None),
    ]


def _bubbles(turns: Sequence[Turn], rendered: bool) -> list[dict[str, Any]]:
    """The window's messages; the last reply is left to the token view unless it is to be rendered."""
    shown = turns if rendered or not turns else with_reply(turns, "")
    return to_bubbles(shown)


def _turns_in_window(session: ChatSession, rendered: bool) -> tuple[Turn, ...]:
    """The conversation as the window has it between two replies: the last one is left to a token view that has it."""
    if rendered or len(session.turns) - 1 not in session.views:
        return session.turns
    return with_reply(session.turns, "")


class _Pace:
    """Says when something slow is due again."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._last = float("-inf")

    def due(self) -> bool:
        now = monotonic()
        if now - self._last < self._interval:
            return False
        self._last = now
        return True


def _show_text(tab: ChatTab, update: ChatUpdate, rendered: bool) -> Updates:
    return {tab.window: _bubbles(update.turns, rendered)}


def _show_panels(tab: ChatTab, update: ChatUpdate, with_charts: bool) -> Updates:
    """The live parts: tokens always, charts where `with_charts`."""
    eagle, baseline = update.eagle, update.baseline
    if eagle is None:
        return {}
    shown: Updates = {}
    if update.phase == "writing":
        shown[tab.tokens] = eagle.view
    if with_charts or eagle.run is not None:
        reference = update.reference.line() if update.reference else None
        shown[tab.numbers] = show_numbers(eagle, baseline)
        shown[tab.speed] = speed_chart(eagle.speed, baseline.speed if baseline else None, reference)
    if eagle.run is not None and update.phase == "writing":
        counters = eagle.numbers.counters
        histogram = counters.histogram if counters else None
        shown[tab.accepted] = accepted_chart(histogram)
        shown[tab.places] = place_chart(histogram)
    return shown


def _show_phase(tab: ChatTab, update: ChatUpdate, session: ChatSession, prompt: str) -> Updates:
    """What changes when a reply enters a new phase: buttons, notice, what is kept."""
    shown: Updates = {tab.notice: gr.Markdown(escape_markup(update.notice), visible=bool(update.notice))}
    match update.phase:
        case "refused":
            shown |= {
                tab.prompt: prompt,
                tab.send: gr.Button(interactive=True),
                tab.stop: gr.Button(interactive=False),
                tab.session: session,
                tab.stored_turns: to_record(session.turns),
            }
        case "asking":
            shown |= {
                tab.prompt: "",
                tab.send: gr.Button(interactive=False),
                tab.stop: gr.Button(interactive=True),
                tab.save: gr.DownloadButton(value=None, interactive=False),
                tab.session: ChatSession(update.turns, session.views),
                tab.stored_turns: to_record(update.turns),
                tab.tokens: EMPTY_VIEW,
                tab.numbers: show_numbers(None, None),
                tab.accepted: accepted_chart(None),
                tab.places: place_chart(None),
            }
        case "done":
            shown |= {tab.send: gr.Button(interactive=True), tab.stop: gr.Button(interactive=False)}
    return shown


def _keep(tab: ChatTab, update: ChatUpdate, session: ChatSession) -> Updates:
    """What outlives the reply: the conversation, its token view, and the speed of the baseline."""
    if update.eagle is None:
        return {}
    kept: Updates = {
        tab.session: ChatSession(update.turns, {**session.views, len(update.turns) - 1: update.eagle.view}),
        tab.stored_turns: to_record(update.turns),
    }
    if update.baseline is not None and update.reference is not None:
        kept[tab.reference] = asdict(update.reference)
    return kept


def _offer_recording(tab: ChatTab, update: ChatUpdate, folder: Path) -> Updates:
    """The reply, and the baseline's beside it, as a file to save."""
    panels = [panel for panel in (update.eagle, update.baseline) if panel is not None]
    runs = [panel.run for panel in panels if panel.run is not None]
    if not runs:
        return {}
    path = write_recording(update.turns[-1].prompt, runs, panels[0].view.vocabulary, folder)
    return {tab.save: gr.DownloadButton(value=path, interactive=True)}


def _read_reference(stored: object) -> ReferenceMeasurement | None:
    if not isinstance(stored, dict):
        return None
    try:
        return ReferenceMeasurement(str(stored["model"]), float(stored["decode_speed"]), str(stored["measured_at"]))
    except (KeyError, ValueError):
        return None


def _current_run(update: ChatUpdate) -> str:
    panel = update.baseline or update.eagle
    return panel.view.run if panel else ""


def give_back_unanswered(session: ChatSession, prompt: str) -> tuple[ChatSession, str]:
    """What a stop before the first token leaves: the conversation without that turn, its prompt to be sent again.

    What has been typed meanwhile in `prompt` stays.
    """
    if not session.turns or session.turns[-1].reply or session.turns[-1].problem:
        return session, prompt
    kept, taken = take_back(session)
    return kept, prompt or taken


def take_back(session: ChatSession) -> tuple[ChatSession, str]:
    """The conversation without its last turn, and that turn's prompt, to be sent again or changed."""
    if not session.turns:
        return session, ""
    turns = session.turns[:-1]
    views = {turn: view for turn, view in session.views.items() if turn < len(turns)}
    return ChatSession(turns, views), session.turns[-1].prompt


HIDDEN: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}


def _wire(page: gr.Blocks, tab: ChatTab, modes: Mapping[str, Mode], engines: Engines, live_runs: LiveRuns) -> None:
    running = _wire_replies(tab, engines, live_runs)
    _wire_history(tab, live_runs, running)
    _wire_settings(page, tab, modes, live_runs)


def _wire_replies(tab: ChatTab, engines: Engines, live_runs: LiveRuns) -> list[Any]:
    """Send, Retry and Stop. Returns the events that write replies."""

    folder = tempfile.TemporaryDirectory(prefix="eaglelens-")  # goes with the app

    async def answer(
        prompt: str, session: ChatSession, reference: object, *settings: Any
    ) -> AsyncGenerator[Updates, None]:
        chosen = ChatSettings(*settings)
        rendered = chosen.view == "Rendered"
        measured = _read_reference(reference)
        charts, markdown = _Pace(CHART_INTERVAL), _Pace(RENDER_INTERVAL)
        last: ChatUpdate | None = None
        async with aclosing(write_reply(prompt, session.turns, chosen, engines, live_runs, measured)) as updates:
            async for update in updates:
                fresh = last is None or last.phase != update.phase
                last = update
                shown = _show_panels(tab, update, fresh or charts.due())
                if fresh:
                    shown |= {**_show_phase(tab, update, session, prompt), tab.current: _current_run(update)}
                if fresh or (rendered and markdown.due()):
                    shown |= _show_text(tab, update, rendered)
                yield shown
                if update.phase == "writing" and update.eagle is not None and update.eagle.run is not None:
                    yield {**_show_text(tab, update, rendered), **_keep(tab, update, session)}
        if last is not None and last.eagle is not None:
            yield {**_keep(tab, last, session), **_offer_recording(tab, last, Path(folder.name))}

    async def stop(current: str) -> None:
        live = live_runs.get(current)
        if live is None:
            return
        live.stop.set()
        with suppress(TimeoutError):
            await asyncio.wait_for(live.ended.wait(), STOP_PATIENCE)

    inputs = [tab.prompt, tab.session, tab.reference, *tab.settings()]
    ask: dict[str, Any] = {"fn": answer, "inputs": inputs, "outputs": tab.shown(), **HIDDEN}
    ask["concurrency_limit"] = MAX_RUNNING
    sent = gr.on([tab.send.click, tab.prompt.submit], **ask)
    again = tab.retry.click(take_back, tab.session, [tab.session, tab.prompt], **HIDDEN).then(**ask)

    def settle(session: ChatSession, prompt: str, view: str, current: str) -> Updates:
        live = live_runs.get(current)
        has_begun = live is not None and bool(live.view.tokens)  # an engine that was too slow to stop in order
        kept, text = (session, prompt) if has_begun else give_back_unanswered(session, prompt)
        shown: Updates = {tab.send: gr.Button(interactive=True), tab.stop: gr.Button(interactive=False)}
        if kept is not session:
            shown |= {
                tab.session: kept,
                tab.prompt: text,
                tab.stored_turns: to_record(kept.turns),
                tab.window: to_bubbles(_turns_in_window(kept, view == "Rendered")),
                tab.tokens: kept.views.get(len(kept.turns) - 1, EMPTY_VIEW),
            }
        return shown

    tab.stop.click(stop, tab.current, None, concurrency_limit=None, **HIDDEN).then(
        settle,
        [tab.session, tab.prompt, tab.view, tab.current],
        [tab.send, tab.stop, tab.session, tab.prompt, tab.stored_turns, tab.window, tab.tokens],
        cancels=[sent, again],
        **HIDDEN,
    )
    return [sent, again]


def _wire_history(tab: ChatTab, live_runs: LiveRuns, running: list[Any]) -> None:
    """Edit, Clear, the switch between the two views, and earlier replies."""

    def change_view(view: str, session: ChatSession, current: str) -> Updates:
        live = live_runs.get(current)
        rendered = view == "Rendered"
        turns = _turns_in_window(session, rendered)
        if rendered and live is not None and turns and not live.ended.is_set():
            turns = with_reply(turns, "".join(token.piece for token in live.view.tokens))
        return {tab.window: to_bubbles(turns), tab.tokens: TokenStream.shown(not rendered)}

    def show_earlier(event: gr.SelectData, session: ChatSession, view: str) -> Updates:
        """The tokens of the reply that was clicked, or a word that they are gone."""
        rendered = view == "Rendered"
        turn = find_turn(_turns_in_window(session, rendered), event.index) if isinstance(event.index, int) else None
        if turn is None or rendered:
            return {tab.tokens: gr.skip()}
        if turn in session.views:
            return {tab.tokens: session.views[turn], tab.notice: gr.Markdown(visible=False)}
        return {tab.notice: gr.Markdown(TOKENS_GONE, visible=bool(session.turns[turn].reply))}

    tab.edit.click(take_back, tab.session, [tab.session, tab.prompt], **HIDDEN).then(
        lambda session: (to_bubbles(session.turns), EMPTY_VIEW, to_record(session.turns)),
        tab.session,
        [tab.window, tab.tokens, tab.stored_turns],
        **HIDDEN,
    )
    gr.on(
        [tab.clear.click, tab.window.clear],
        lambda: (ChatSession(), [], EMPTY_VIEW, [], show_numbers(None, None), _empty_speed_chart()),
        None,
        [tab.session, tab.window, tab.tokens, tab.stored_turns, tab.numbers, tab.speed],
        cancels=running,
        **HIDDEN,
    )
    tab.view.change(change_view, [tab.view, tab.session, tab.current], [tab.window, tab.tokens], **HIDDEN)
    tab.window.select(show_earlier, [tab.session, tab.view], [tab.tokens, tab.notice], **HIDDEN)


def _wire_settings(page: gr.Blocks, tab: ChatTab, modes: Mapping[str, Mode], live_runs: LiveRuns) -> None:
    """Modes, examples, and what survives a reload."""

    def choose_mode(name: str) -> tuple[str, int, Any]:
        mode = modes[name]
        return mode.system, mode.max_tokens, gr.Dataset(samples=[[text] for text in mode.examples])

    def restore(stored: object, record: object, view: str) -> Updates:
        turns = from_record(record)
        session = ChatSession(turns, find_views(turns, live_runs))
        chosen = read_settings(stored)
        rendered = (chosen.view if chosen else view) == "Rendered"
        last = session.views.get(len(turns) - 1)
        shown: Updates = {} if chosen is None else dict(zip(tab.settings(), astuple(chosen), strict=True))
        return shown | {
            tab.session: session,
            tab.window: to_bubbles(_turns_in_window(session, rendered)),
            tab.tokens: TokenStream.shown(not rendered) if last is None else TokenStream.update(last, not rendered),
        }

    tab.mode.input(choose_mode, tab.mode, [tab.system, tab.max_tokens, tab.examples], **HIDDEN)
    tab.examples.click(lambda row: row[0], tab.examples, tab.prompt, **HIDDEN)
    gr.on(
        [setting.change for setting in tab.settings()],
        lambda *values: asdict(ChatSettings(*values)),
        tab.settings(),
        tab.stored_settings,
        queue=False,
        **HIDDEN,
    )
    page.load(
        restore,
        [tab.stored_settings, tab.stored_turns, tab.view],
        [*tab.settings(), tab.session, tab.window, tab.tokens],
        **HIDDEN,
    )


def find_views(turns: Sequence[Turn], live_runs: LiveRuns) -> dict[int, StreamView]:
    """The token views, by turn, of those replies whose runs the app has not forgotten."""
    found = ((at, live_runs.whole(turn.run)) for at, turn in enumerate(turns))
    return {at: view for at, view in found if view is not None}


def read_settings(stored: object) -> ChatSettings | None:
    """The settings that the browser kept; None where they are of another version of this app."""
    names = {field.name for field in fields(ChatSettings)}
    if not isinstance(stored, dict) or set(stored) != names:
        return None
    # The engine may be another one, which takes other numbers of drafts.
    return ChatSettings(**{**stored, "num_steps": AS_ENGINE})
