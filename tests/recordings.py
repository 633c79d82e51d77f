"""Recordings whose every token, time and step is known, for the tests of what plays them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from backend.events import Chunk, Counters, Exactness, Request, Run, Sampling, Source, Token
from backend.recording import Recording

NUM_STEPS = 3
WORDS = {900: " wrong", 901: " worse", 902: " worst"}


def make_drafted_run(pieces: Sequence[str], accepted: Sequence[int], pace: float = 0.1) -> Run:
    """A run of one step every `pace` seconds; step i keeps `accepted[i]` drafts and then the target's own token.

    Token i has id i and piece `pieces[i]`; rejected drafts have the ids of `WORDS`.
    """
    chunks = [Chunk(pace, (0,), pieces[0], ())]
    tokens = [Token(0, 0, pieces[0], Source.FIRST, 0, 0, pace)]
    for step, kept in enumerate(accepted, start=1):
        first = len(tokens)
        ids = tuple(range(first, first + kept + 1))
        arrived = pace * (step + 1)
        proposed = (*ids[:-1], 900, 901, 902)[:NUM_STEPS]
        chunks.append(Chunk(arrived, ids, "".join(pieces[token] for token in ids), proposed))
        tokens += [
            Token(token, token, pieces[token], _source(place, kept), step, place, arrived)
            for place, token in enumerate(ids)
        ]
    counters = Counters(len(accepted), sum(accepted), NUM_STEPS * len(accepted), len(tokens), 3)
    request = Request("drafted", (7, 8, 9), Sampling(max_tokens=len(tokens)))
    return Run("EAGLE-3", request, 1.8e9, tuple(chunks), tuple(tokens), counters, Exactness.EXACT, NUM_STEPS, "length")


def make_plain_run(pieces: Sequence[str], pace: float = 0.1) -> Run:
    """The same tokens one by one, sent after the drafted run had ended."""
    tokens = tuple(
        Token(at, at, piece, Source.TARGET if at else Source.FIRST, at, 0, pace * (at + 1))
        for at, piece in enumerate(pieces)
    )
    chunks = tuple(Chunk(token.arrived, (token.id,), token.piece) for token in tokens)
    request = Request("plain", (7, 8, 9), Sampling(max_tokens=len(tokens)))
    counters = Counters(None, None, None, len(tokens), 3)
    return Run("Baseline", request, 1.8e9 + 100, chunks, tokens, counters, Exactness.EXACT, 0, "length")


def make_pair(pieces: Sequence[str], accepted: Sequence[int], pace: float = 0.1, title: str = "Known") -> Recording:
    """Both runs as a recording; `pieces` must be as many as the steps keep."""
    drafted = make_drafted_run(pieces, accepted, pace)
    assert len(drafted.tokens) == len(pieces)
    return Recording(title, 1.8e9, "0.1.0", (drafted, make_plain_run(pieces, pace)), dict(WORDS))


def name_pieces(count: int) -> list[str]:
    """` w0`, ` w1`, …"""
    return [f" w{index}" for index in range(count)]


def only_drafted(recording: Recording) -> Recording:
    """The recording without its second run."""
    return replace(recording, runs=recording.runs[:1])


def _source(place: int, kept: int) -> Source:
    return Source.DRAFT if place < kept else Source.TARGET
