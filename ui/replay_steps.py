"""Explain: what happened in each verify step, as a sentence and as a row of places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from backend.events import Source, Token
from backend.playback import Step
from ui.token_stream import find_word


class Fate(StrEnum):
    """What became of one place of a step."""

    ACCEPTED = "accepted"  # the target agreed with the draft
    CORRECTED = "corrected"  # the target wrote another token here
    DROPPED = "dropped"  # drafted behind a corrected one, so void
    CUT = "cut"  # behind the end of the reply
    OWN = "own"  # the target's token where nothing was drafted
    HIDDEN = "hidden"  # a merged chunk does not tell


@dataclass(frozen=True)
class Place:
    """One column of a step: the drafted token and what stands in the reply, as text; None where there is none."""

    fate: Fate
    draft: str | None
    kept: str | None


@dataclass(frozen=True)
class StepView:
    """One step as the page shows it. `seconds` is when its tokens arrived, `title` names it."""

    seconds: float
    title: str
    sentence: str
    places: tuple[Place, ...]


def show_step(step: Step, num_steps: int, words: Mapping[int, str]) -> StepView:
    """The step in words. `num_steps` is the lane's, `words` the texts of drafted ids."""
    return StepView(
        # As the token view rounds its times, so that both show the same tokens at the same moment.
        seconds=round(step.arrived, 4),
        title=_name(step, num_steps),
        sentence=_describe(step, num_steps),
        places=_list_places(step, words),
    )


def _name(step: Step, num_steps: int) -> str:
    if step.number == 0:
        return "Prefill"
    if _is_hidden(step):
        return "Steps merged on the way"
    return f"{'Verify step' if num_steps else 'Step'} {step.number}"


def _describe(step: Step, num_steps: int) -> str:
    kept = _count(len(step.tokens), "token")
    if step.number == 0:
        return "The target reads the prompt and writes the first token by itself."
    if _is_hidden(step):
        return f"{kept} came in one output that hides its steps: who produced each of them is not known."
    if num_steps == 0:
        return "Without a draft, one pass of the target yields one token."
    return f"{_describe_drafts(step)} One pass of the target, {kept}."


def _describe_drafts(step: Step) -> str:
    accepted = step.accepted
    if step.proposed is None:
        own = "" if step.own is None else " and wrote one of its own"
        return f"The target accepted {_count(accepted, 'drafted token')}{own}; this server does not tell the rejected."
    if not step.proposed:
        return "Nothing was drafted here, so the target wrote its own token."
    drafted = f"The draft proposed {_count(len(step.proposed), 'token')}"
    if step.own is None:
        return f"{drafted}; the reply ends within them, and what lies behind the end is cut."
    if accepted >= len(step.proposed):
        which = "it" if accepted == 1 else f"all {accepted}"
        return f"{drafted}; the target accepted {which} and added one of its own."
    how_many = accepted or "none"
    return f"{drafted}; the target accepted {how_many} and put its own token in place {accepted + 1}."


def _is_hidden(step: Step) -> bool:
    return step.number is None or any(token.source is Source.UNCERTAIN for token in step.tokens)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _list_places(step: Step, words: Mapping[int, str]) -> tuple[Place, ...]:
    if _is_hidden(step):
        return tuple(Place(Fate.HIDDEN, None, token.piece) for token in step.tokens)
    proposed = step.proposed or ()
    places = max(len(proposed), len(step.tokens))
    return tuple(_show_place(step, at, words) for at in range(places))


def _show_place(step: Step, at: int, words: Mapping[int, str]) -> Place:
    token = step.tokens[at] if at < len(step.tokens) else None
    kept = None if token is None else token.piece
    if token is not None and token.source is Source.DRAFT:
        return Place(Fate.ACCEPTED, kept, kept)
    draft = _find_draft(step, at, words)
    return Place(_judge(step, token, draft), draft, kept)


def _judge(step: Step, token: Token | None, draft: str | None) -> Fate:
    if token is None:
        return Fate.CUT if step.own is None else Fate.DROPPED
    return Fate.OWN if draft is None else Fate.CORRECTED


def _find_draft(step: Step, at: int, words: Mapping[int, str]) -> str | None:
    if step.proposed is None or at >= len(step.proposed):
        return None
    token = step.proposed[at]
    text = find_word(words, token)
    return f"[{token}]" if text is None else text
