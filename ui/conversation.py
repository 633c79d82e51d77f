"""A chat as values: its turns, what is sent to the model, and how it is kept in the browser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from ui.limits import MAX_TURNS
from ui.markdown import escape_markup

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"


class Message(TypedDict):
    """A message as chat templates take it."""

    role: str
    content: str


@dataclass(frozen=True)
class Turn:
    """What a person wrote and what came back. `problem` says why the reply is missing or cut, `run` who wrote it."""

    prompt: str
    reply: str = ""
    problem: str = ""
    run: str = ""


def split_thought(reply: str) -> tuple[str, str]:
    """A reply as (thinking, answer). Without a closing mark all of an opened reply is thinking."""
    opened = reply.lstrip().startswith(THINK_OPEN)
    thought, closed, answer = reply.partition(THINK_CLOSE)
    if closed:
        return thought.replace(THINK_OPEN, "").strip(), answer.lstrip("\n")
    return (reply.replace(THINK_OPEN, "").strip(), "") if opened else ("", reply)


def to_messages(system: str, turns: Sequence[Turn], prompt: str) -> list[Message]:
    """The messages of a new prompt. Earlier thinking is left out, as reasoning models' templates expect."""
    messages = [Message(role="system", content=system)] if system.strip() else []
    for turn in turns[-MAX_TURNS:]:
        messages.append(Message(role="user", content=turn.prompt))
        answer = split_thought(turn.reply)[1]
        if answer:
            messages.append(Message(role="assistant", content=answer))
    return [*messages, Message(role="user", content=prompt)]


def to_bubbles(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """The conversation as the chat window takes it: thinking apart, model text never raw HTML."""
    bubbles: list[dict[str, Any]] = []
    for turn in turns:
        bubbles.append({"role": "user", "content": escape_markup(turn.prompt)})
        thought, answer = split_thought(turn.reply)
        if thought:
            bubbles.append({"role": "assistant", "content": escape_markup(thought), "metadata": {"title": "Thinking"}})
        if answer:
            bubbles.append({"role": "assistant", "content": escape_markup(answer)})
        if turn.problem:
            bubbles.append({"role": "assistant", "content": f"*{escape_markup(turn.problem)}*"})
    return bubbles


def find_turn(turns: Sequence[Turn], bubble: int) -> int | None:
    """The turn that bubble number `bubble` of `to_bubbles(turns)` belongs to; None where there is no such bubble."""
    seen = 0
    for index, turn in enumerate(turns):
        seen += len(to_bubbles((turn,)))
        if bubble < seen:
            return index
    return None


def with_reply(turns: Sequence[Turn], reply: str, problem: str = "", run: str = "") -> tuple[Turn, ...]:
    """The conversation with the last turn's reply replaced."""
    return (*turns[:-1], replace(turns[-1], reply=reply, problem=problem, run=run))


def to_record(turns: Sequence[Turn]) -> list[list[str]]:
    """The conversation as the browser keeps it."""
    return [[turn.prompt, turn.reply, turn.problem, turn.run] for turn in turns]


def from_record(record: object) -> tuple[Turn, ...]:
    """The conversation the browser kept; empty where the record is not one."""
    if not isinstance(record, list):
        return ()
    rows = [row for row in record if isinstance(row, list) and len(row) == 4 and all(isinstance(x, str) for x in row)]
    return tuple(Turn(*row) for row in rows)
