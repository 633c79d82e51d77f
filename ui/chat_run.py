"""One reply of a chat, from the prompt to the last number. Knows no component."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal
from uuid import uuid4

from backend import metrics
from backend.client import tokenize_chat
from backend.errors import EagleLensError
from backend.events import Request, Sampling
from backend.lanes import Lane
from ui.charts import ReferenceSpeed
from ui.conversation import Turn, to_messages, with_reply
from ui.draft_length import AS_ENGINE
from ui.engines import Engines
from ui.limits import MAX_PROMPT_CHARACTERS, MAX_REPLY_TOKENS, MAX_SYSTEM_CHARACTERS
from ui.live_runs import LiveRuns
from ui.panel import PanelUpdate, stream_panel

Thinking = Literal["the model's default", "on", "off"]


@dataclass(frozen=True)
class ChatSettings:
    """What a person has chosen. `max_tokens` counts completion tokens, `num_steps` drafts a verify step."""

    mode: str
    system: str
    temperature: float
    top_p: float
    max_tokens: int
    thinking: Thinking
    run_baseline: bool
    view: Literal["Tokens", "Rendered"]
    num_steps: int = AS_ENGINE

    def sampling(self) -> Sampling:
        """The sampling to ask for, within this app's limits."""
        return Sampling(
            temperature=float(self.temperature),
            top_p=float(self.top_p),
            max_tokens=max(1, min(int(self.max_tokens), MAX_REPLY_TOKENS)),
            num_steps=None if self.num_steps == AS_ENGINE else int(self.num_steps),
        )

    def template_kwargs(self) -> Mapping[str, object]:
        """What the chat template is told, nothing where the model's default is wanted."""
        return {} if self.thinking == "the model's default" else {"enable_thinking": self.thinking == "on"}


@dataclass(frozen=True)
class ReferenceMeasurement:
    """The last baseline speed measured, of which model and when (ISO 8601, UTC)."""

    model: str
    decode_speed: float
    measured_at: str

    def line(self) -> ReferenceSpeed:
        """As a dated line of a chart."""
        when = datetime.fromisoformat(self.measured_at)
        return ReferenceSpeed(self.decode_speed, f"{when:%-d %b %H:%M} UTC")


@dataclass(frozen=True)
class ChatUpdate:
    """Where a reply is. `notice` is a sentence for the person, empty where all goes well."""

    phase: Literal["refused", "asking", "writing", "baseline", "done"]
    turns: tuple[Turn, ...]
    eagle: PanelUpdate | None = None
    baseline: PanelUpdate | None = None
    reference: ReferenceMeasurement | None = None
    notice: str = ""


async def write_reply(
    prompt: str,
    turns: tuple[Turn, ...],
    settings: ChatSettings,
    engines: Engines,
    live_runs: LiveRuns,
    reference: ReferenceMeasurement | None,
) -> AsyncGenerator[ChatUpdate, None]:
    """Ask for a reply, and for the baseline's after it where that is wanted. The last update is complete."""
    refusal = find_refusal(prompt, settings)
    state = await engines.state()
    if refusal or state.eagle is None:
        notice = refusal or state.problem or "The engine is still loading. Your text is kept: send it when it is ready."
        yield ChatUpdate("refused", turns, notice=notice)
        return
    asked = (*turns, Turn(prompt))
    yield ChatUpdate("asking", asked)
    try:
        messages = to_messages(settings.system, turns, prompt)
        ids = await tokenize_chat(state.eagle, messages, settings.template_kwargs())
    except EagleLensError as error:
        engines.forget()
        yield ChatUpdate("refused", turns, notice=str(error))
        return
    if state.baseline is None:
        reference = _read_kept(engines, state.eagle) or reference
    request = Request(uuid4().hex, tuple(ids), settings.sampling())
    last: ChatUpdate | None = None
    async with aclosing(stream_panel(state.eagle, request, live_runs)) as panels:
        async for panel in panels:
            last = _with_panel(asked, panel, reference)
            yield last
    if last is None or last.eagle is None or last.eagle.run is None:
        return
    if last.eagle.run.error:
        engines.forget()
    baseline = state.baseline
    stopped = last.eagle.run.finish_reason in (None, "abort")
    if settings.run_baseline and baseline is not None and not stopped:
        last = replace(last, reference=None)
        plain = replace(request, rid=uuid4().hex, sampling=replace(request.sampling, num_steps=None))
        async with aclosing(stream_panel(baseline, plain, live_runs)) as panels:
            async for panel in panels:
                last = replace(last, phase="baseline", baseline=panel)
                yield last
        last = replace(last, reference=_to_reference(baseline.model, last.baseline) or reference)
    yield replace(last, phase="done")


def find_refusal(prompt: str, settings: ChatSettings) -> str:
    """Why this prompt is not sent, empty where it is."""
    if not prompt.strip():
        return "Write a message first."
    if len(prompt) > MAX_PROMPT_CHARACTERS:
        return f"The message has {len(prompt):,} characters; the limit is {MAX_PROMPT_CHARACTERS:,}. Shorten it."
    if len(settings.system) > MAX_SYSTEM_CHARACTERS:
        return f"The system prompt has more than {MAX_SYSTEM_CHARACTERS:,} characters. Shorten it."
    return ""


def _with_panel(asked: tuple[Turn, ...], panel: PanelUpdate, reference: ReferenceMeasurement | None) -> ChatUpdate:
    reply = "".join(token.piece for token in panel.view.tokens)
    problem = ""
    if panel.run is not None:
        problem = panel.run.error or ("Stopped." if panel.run.finish_reason == "abort" else "")
    turns = with_reply(asked, reply, problem, panel.view.run)
    return ChatUpdate("writing", turns, panel, reference=reference, notice=problem)


def _read_kept(engines: Engines, lane: Lane) -> ReferenceMeasurement | None:
    """The newest dated baseline of this model, for a pair whose baseline has no room now."""
    run = engines.kept.find_newest(lane)
    speed = metrics.decode_speed(run.tokens) if run else None
    if run is None or speed is None:
        return None
    return ReferenceMeasurement(lane.model, speed, datetime.fromtimestamp(run.started_at, UTC).isoformat())


def _to_reference(model: str, panel: PanelUpdate | None) -> ReferenceMeasurement | None:
    speed = panel.numbers.decode_speed if panel and panel.run and not panel.run.error else None
    if speed is None:
        return None
    return ReferenceMeasurement(model, speed, datetime.now(UTC).isoformat(timespec="seconds"))
