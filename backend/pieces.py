"""Token ids -> pieces of text that join to exactly the server's text. Pure: whoever calls decodes.

The server sends text per chunk, not per token, and holds back a character whose bytes are not yet complete. So
pieces are found twice: live, by laying the text of single tokens (the vocabulary) along a chunk's text; and, for
the chunks where that did not settle every token, once more at the end from decoded windows of ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

INCOMPLETE = "\ufffd"  # how a decoder writes bytes that are not a whole character
CONTEXT = 8  # tokens before one to decode with it: enough to hold a whole character behind a cut one


@dataclass(frozen=True)
class Split:
    """The pieces of one chunk. `settled` says whether each is certain to be that token's own text."""

    pieces: tuple[str, ...]
    settled: bool


@dataclass(frozen=True)
class Span:
    """Tokens `start` to `stop` (exclusive) whose pieces are not settled, and the text that they join to."""

    start: int
    stop: int
    text: str


def split_text(ids: Sequence[int], text: str, vocabulary: Sequence[str], *, in_step: bool = True) -> Split:
    """Cut the text of one chunk into a piece per id; the pieces always join to `text`.

    `vocabulary[id]` is the text of a single token after other text. `in_step` says whether the chunk before was
    settled, so that no text of earlier tokens is still to come. What matches from either end is given to its token;
    the middle goes to the last token that is left, the one that completes a split character.
    """
    if not ids:
        return Split((), not text)
    known = [vocabulary[token] if 0 <= token < len(vocabulary) else None for token in ids]
    whole = all(piece is not None and INCOMPLETE not in piece for piece in known)
    if in_step and len(ids) == 1 and text and (whole or not vocabulary):
        return Split((text,), True)
    if whole and "".join(piece or "" for piece in known) == text:
        return Split(tuple(piece or "" for piece in known), True)
    return Split(_lay_along(known, text), False)


def find_spans(chunks: Sequence[tuple[int, str, bool]]) -> tuple[Span, ...]:
    """Join neighbouring unsettled chunks into spans. `chunks` are (number of ids, text, settled) in order.

    Text that came without an id belongs to the tokens before it.
    """
    spans: list[Span] = []
    at = 0
    for size, text, settled in _join_late_text(chunks):
        if settled:
            at += size
            continue
        if spans and spans[-1].stop == at:
            last = spans.pop()
            spans.append(Span(last.start, at + size, last.text + text))
        else:
            spans.append(Span(at, at + size, text))
        at += size
    return tuple(spans)


def list_windows(ids: Sequence[int], span: Span) -> tuple[tuple[int, ...], ...]:
    """The id sequences to decode so that `read_windows` can tell the pieces of `span`.

    Two for each token: some tokens before it, without it and with it.
    """
    return tuple(
        tuple(ids[max(0, at - CONTEXT) : stop]) for at in range(span.start, span.stop) for stop in (at, at + 1)
    )


def read_windows(span: Span, decoded: Sequence[str]) -> tuple[str, ...] | None:
    """The pieces of `span` from the decoded windows; None where they do not join to its text.

    A character split over several tokens is given to the token that completes it.
    """
    pieces = []
    for shorter, longer in zip(decoded[::2], decoded[1::2], strict=True):
        before, after = shorter.rstrip(INCOMPLETE), longer.rstrip(INCOMPLETE)
        if not after.startswith(before):
            return None
        pieces.append(after[len(before) :])
    joined = "".join(pieces)
    if span.text != joined and span.text.startswith(joined) and pieces:
        pieces[-1] += span.text[len(joined) :]  # bytes that never became a character end the text as they came
        joined = span.text
    return tuple(pieces) if joined == span.text else None


def strip_anchor(anchor: str, decoded: Sequence[str]) -> tuple[str, ...]:
    """The vocabulary from decoding [anchor, id] for each id: what each id adds behind the anchor's text.

    Decoders drop a leading space at the start of a text, so a token decoded alone would lose its own.
    """
    return tuple(text[len(anchor) :] if text.startswith(anchor) else text for text in decoded)


def find_anchor(decoded: Sequence[str]) -> int | None:
    """The first id whose own text is plain letters or digits, given the texts of single tokens by id, if any."""
    return next((token for token, text in enumerate(decoded) if text.isascii() and text.strip().isalnum()), None)


def _join_late_text(chunks: Sequence[tuple[int, str, bool]]) -> list[tuple[int, str, bool]]:
    joined: list[tuple[int, str, bool]] = []
    early = ""
    for size, text, settled in chunks:
        if size == 0 and joined:
            before, start, was_settled = joined.pop()
            joined.append((before, start + text, was_settled and not text))
        elif size == 0:
            early += text
        else:
            joined.append((size, early + text, settled and not early))
            early = ""
    return joined


def _lay_along(known: Sequence[str | None], text: str) -> tuple[str, ...]:
    pieces = [""] * len(known)
    left, begin = 0, 0
    while left < len(known) and _is_whole(known[left]) and text.startswith(known[left] or "", begin):
        pieces[left] = known[left] or ""
        begin += len(pieces[left])
        left += 1
    right, end = len(known), len(text)
    while right > left and _is_whole(known[right - 1]) and text.endswith(known[right - 1] or "", begin, end):
        pieces[right - 1] = known[right - 1] or ""
        end -= len(pieces[right - 1])
        right -= 1
    middle = text[begin:end]
    if right > left or right == len(known):
        pieces[right - 1] += middle
    else:
        pieces[right] = middle + pieces[right]
    return tuple(pieces)


def _is_whole(piece: str | None) -> bool:
    return piece is not None and INCOMPLETE not in piece
