"""The token view: every token of one run, marked by who produced it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import gradio as gr

from backend.events import Chunk, Exactness, Source, Token
from ui.resources import read_resource

Vocabulary = Sequence[str] | Mapping[int, str]  # the text of a token by its id

WINDOW = 100  # tokens in one update: the page can miss several updates and still be whole
CODES = {Source.FIRST: "f", Source.DRAFT: "d", Source.TARGET: "t", Source.UNCERTAIN: "u"}
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"

BADGES = {
    Exactness.EXACT: ("labels exact", "Every label is certain, and the totals agree with the engine's own counters."),
    Exactness.PARTIAL: (
        "labels partly uncertain",
        "Merged engine outputs, or counters that did not come, hide who produced them.",
    ),
    Exactness.INCONSISTENT: (
        "labels unknown",
        "The engine's counters disagree with what arrived: no label is claimed.",
    ),
    Exactness.PROVISIONAL: ("labels provisional", "The engine's final counters have not arrived."),
}


@dataclass(frozen=True)
class StreamView:
    """What the token view shows of one run at one moment.

    `run` names the run; a new name clears the view. `vocabulary[id]` is the text of a drafted id.
    """

    run: str
    title: str
    stats: str
    tokens: Sequence[Token]
    chunks: Sequence[Chunk]
    exactness: Exactness
    done: bool
    vocabulary: Vocabulary = ()


EMPTY_VIEW = StreamView("", "", "", (), (), Exactness.PROVISIONAL, True)


def encode_update(view: StreamView, window: int | None = WINDOW) -> str:
    """The update for the page, as compact JSON: the last `window` tokens and their offset, all of them if None.

    Each token is a row `[piece, source code, step, place, id, seconds]`.
    """
    total = len(view.tokens)
    first = 0 if window is None else max(0, total - window)
    shown = view.tokens[first:]
    exactness_text, exactness_tip = BADGES[view.exactness]
    counts = Counter(map(attrgetter("source"), view.tokens))
    if view.exactness is Exactness.PARTIAL:
        exactness_text = f"{counts[Source.UNCERTAIN]} labels uncertain"
    update = {
        "run": view.run,
        "title": view.title,
        "stats": view.stats,
        "first": first,
        "total": total,
        "tokens": [_row(token) for token in shown],
        "proposed": _proposals(view, shown[0].index if shown else 0),
        "counts": counts,
        "badge": {"text": exactness_text if total else "", "tip": exactness_tip, "state": view.exactness.value},
        "thought": find_thought(view.tokens),
        "done": view.done,
    }
    return json.dumps(update, ensure_ascii=False, separators=(",", ":"))


def _row(token: Token) -> list[object]:
    return [token.piece, CODES[token.source], token.step, token.place, token.id, round(token.arrived, 4)]


def _proposals(view: StreamView, first_index: int) -> list[list[object]]:
    """`[step, accepted, ids, texts]` of each step from token `first_index` on whose drafts the engine told."""
    rows: list[list[object]] = []
    begin = sum(len(chunk.ids) for chunk in view.chunks)
    for chunk in reversed(view.chunks):  # most of a long reply lies before the window
        begin -= len(chunk.ids)
        if begin < first_index:
            break
        if chunk.proposed is None or not chunk.ids or begin >= len(view.tokens):
            continue
        step = view.tokens[begin].step
        if step is None:
            continue
        accepted = _common_prefix(chunk.ids, chunk.proposed)
        rows.append(
            [
                step,
                accepted,
                list(chunk.proposed),
                [find_word(view.vocabulary, draft) for draft in chunk.proposed],
            ]
        )
    return rows[::-1]


def find_word(vocabulary: Vocabulary, token: int) -> str | None:
    """The text of a token id; None where it is not known."""
    if isinstance(vocabulary, Mapping):
        return vocabulary.get(token)
    return vocabulary[token] if 0 <= token < len(vocabulary) else None


def _common_prefix(kept: Sequence[int], proposed: Sequence[int]) -> int:
    length = 0
    for one, other in zip(kept, proposed, strict=False):
        if one != other:
            break
        length += 1
    return length


def find_thought(tokens: Sequence[Token]) -> tuple[int | None, int | None]:
    """First token of a reasoning model's thinking and the first one after it; None where there is none (yet).

    A reply without an opening mark but with a closing one was opened by the chat template.
    """
    close = next((i for i, token in enumerate(tokens) if THINK_CLOSE in token.piece), None)
    if close is not None:
        return 0, close + 1
    opened = any(THINK_OPEN in token.piece for token in tokens[:3])
    return (0, None) if opened else (None, None)


class TokenStream(gr.HTML):
    """Shows a `StreamView`. Model text reaches the page as data and becomes text nodes, never markup.

    `whole` returns the complete view of a run by name; the page asks for it when it has missed updates.
    """

    def __init__(
        self, value: StreamView = EMPTY_VIEW, *, whole: Callable[[str], StreamView | None], **props: Any
    ) -> None:
        def resend(run: str) -> str | None:
            view = whole(run)
            return None if view is None else encode_update(view, None)

        super().__init__(
            value,
            html_template=read_resource("html/token_stream.html"),
            js_on_load=read_resource("js/token_stream.js"),
            apply_default_css=False,
            server_functions=[resend],
            **props,
        )

    def postprocess(self, value: StreamView | None) -> str:  # type: ignore[override]
        view = value or EMPTY_VIEW
        return encode_update(view, None if view.done else WINDOW)

    @staticmethod
    def update(view: StreamView, visible: bool) -> dict[str, Any]:
        """An update that puts this view in, and shows or hides it."""
        return gr.update(value=view, visible=True if visible else "hidden")

    @staticmethod
    def shown(visible: bool) -> dict[str, Any]:
        """An update that shows or hides the view and leaves its tokens as they are."""
        return gr.update(visible=True if visible else "hidden")
