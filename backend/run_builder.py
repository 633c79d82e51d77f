"""A run as it grows: deltas of the wire in, tokens with pieces and labels out. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from backend.attribution import (
    Attribution,
    Label,
    attribute,
    attribute_unknown,
    infer_steps,
    label_live,
    label_unknown,
)
from backend.events import Chunk, Counters, Exactness, Request, Run, RunStarted, Token, TokensArrived
from backend.lanes import Lane
from backend.pieces import Span, find_spans, split_text
from backend.wire import Delta, sum_up

UNKNOWN_ID = -1  # the server told how many tokens came, not which


class RunBuilder:
    """Takes the deltas of one streamed request in order, and ends as a `Run`."""

    def __init__(self, lane: Lane, started: RunStarted) -> None:
        self._lane = lane
        self._started = started
        self._deltas: list[Delta] = []
        self._chunks: list[Chunk] = []
        self._pieces: list[str] = []
        self._settled: list[bool] = []
        self._step: int | None = 0
        self._late = ""
        self._held: tuple[int, Chunk] | None = None

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(token for chunk in self._chunks for token in chunk.ids)

    def add(self, delta: Delta, arrived: float) -> TokensArrived | None:
        """Take one delta that came `arrived` seconds after sending; the event to pass on, if it has tokens.

        The last chunk of a speculating server is held until `end`: it may have been cut.
        """
        ids = self._known_ids(delta)
        self._deltas.append(delta)
        if not ids and not delta.text:
            return None
        chunk = Chunk(arrived, ids, delta.text, delta.proposed)
        first_index = len(self._pieces)
        self._chunks.append(chunk)
        text, self._late = (self._late + delta.text, "") if ids else ("", self._late + delta.text)
        split = split_text(ids, text, self._lane.vocabulary, in_step=not self._settled or self._settled[-1])
        self._pieces += split.pieces
        self._settled.append(split.settled and UNKNOWN_ID not in ids and not self._late)
        labels = self._label(len(ids), first_index)
        if not ids:
            return None
        if delta.finish_reason is not None and self._started.num_steps > 0:
            self._held = (first_index, chunk)
            return None
        return TokensArrived(
            first_index, _make_tokens(first_index, ids, split.pieces, labels, [arrived] * len(ids)), chunk
        )

    def open_spans(self) -> tuple[Span, ...]:
        """The stretches whose pieces only decoding can settle; none where the server told no ids."""
        if UNKNOWN_ID in self.ids:
            return ()
        chunks = zip(self._chunks, self._settled, strict=True)
        spans = find_spans([(len(chunk.ids), chunk.text, settled) for chunk, settled in chunks])
        return tuple(span for span in spans if span.stop > span.start)

    def settle(self, span: Span, pieces: Sequence[str]) -> None:
        """Put the pieces of a span in their place; they join to its text."""
        self._pieces[span.start : span.stop] = pieces

    def end(self, error: str | None, facts: Mapping[str, object]) -> tuple[TokensArrived | None, Run]:
        """The held chunk, if any, and the run with its final labels."""
        counters = sum_up(self._deltas)
        finish_reason = next((delta.finish_reason for delta in reversed(self._deltas) if delta.finish_reason), None)
        attribution, num_steps = self._attribute(counters, finish_reason)
        pieces = list(self._pieces)
        late = self._late if "".join(pieces) != "".join(chunk.text for chunk in self._chunks) else ""
        if pieces and late:
            pieces[-1] += late
        arrivals = [chunk.arrived for chunk in self._chunks for _ in chunk.ids]
        tokens = _make_tokens(0, self.ids, pieces, attribution.labels, arrivals)
        run = Run(
            lane=self._lane.label,
            request=self._started.request,
            started_at=self._started.started_at,
            chunks=tuple(self._chunks),
            tokens=tokens,
            counters=counters,
            exactness=attribution.exactness,
            num_steps=num_steps,
            finish_reason=finish_reason,
            error=error,
            server=dict(facts),
        )
        held = None
        if self._held is not None:
            first_index, chunk = self._held
            held = TokensArrived(first_index, tokens[first_index : first_index + len(chunk.ids)], chunk)
        return held, run

    def _label(self, size: int, first_index: int) -> tuple[Label, ...]:
        """Provisional labels of the chunk that begins at `first_index`."""
        if not self._lane.tells_speculation:
            return label_unknown(size, first=first_index == 0)
        labels, self._step = label_live(size, self._step, self._started.num_steps)
        return labels

    def _attribute(self, counters: Counters | None, finish_reason: str | None) -> tuple[Attribution, int]:
        """Final labels, and the drafts per verify step: the lane's, or what counters tell where it does not."""
        sizes = [len(chunk.ids) for chunk in self._chunks]
        num_steps, drafts_per_step = self._started.num_steps, self._lane.drafts_per_step
        if not self._lane.tells_speculation:
            told = infer_steps(counters)
            if told is None:
                return attribute_unknown(sizes, ended=finish_reason is not None), 0
            num_steps = drafts_per_step = told
        uncounted = finish_reason == "abort" and num_steps > 0 and (counters is None or counters.verify_steps is None)
        attribution = attribute(
            sizes,
            counters,
            num_steps,
            drafts_per_step=num_steps if self._lane.is_embedded else drafts_per_step,
            accept_lengths=next((d.accept_lengths for d in reversed(self._deltas) if d.accept_lengths), None),
            ended=finish_reason is not None and not uncounted,
        )
        return attribution, num_steps

    def _known_ids(self, delta: Delta) -> tuple[int, ...]:
        if delta.ids is not None:
            return delta.ids
        before = max((d.completion_tokens or 0 for d in self._deltas), default=0)
        return (UNKNOWN_ID,) * max(0, (delta.completion_tokens or before) - before)


def run_so_far(started: RunStarted, arrived: Sequence[TokensArrived]) -> Run:
    """What a consumer that closed its stream early has of the run: the events it got, provisionally labelled."""
    return Run(
        lane=started.lane,
        request=started.request,
        started_at=started.started_at,
        chunks=tuple(event.chunk for event in arrived),
        tokens=tuple(token for event in arrived for token in event.tokens),
        counters=None,
        exactness=Exactness.PROVISIONAL,
        num_steps=started.num_steps,
    )


def steps_asked(lane: Lane, request: Request) -> int:
    """Drafts per verify step of this request: the lane's, unless it lets each request choose."""
    chosen = request.sampling.num_steps
    return chosen if lane.is_embedded and lane.is_speculative and chosen is not None else lane.num_steps


def _make_tokens(
    first_index: int, ids: Sequence[int], pieces: Sequence[str], labels: Sequence[Label], arrivals: Sequence[float]
) -> tuple[Token, ...]:
    rows = zip(ids, pieces, labels, arrivals, strict=True)
    return tuple(
        Token(first_index + offset, token, piece, label.source, label.step, label.place, arrived)
        for offset, (token, piece, label, arrived) in enumerate(rows)
    )
