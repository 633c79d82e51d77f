"""Who produced each token: chunk sizes and the engine's final counters -> labels. Pure.

A server with EAGLE-3 emits one chunk for the prefill (one token) and one for each verify step: the accepted
drafts in order, then one token of the target. Chunks may merge on the way, and the last step may be cut behind
the stop. The engine's counters, which come with the end of the stream, say how many steps and accepted drafts
there were, and so which chunks can be taken apart for certain.

An *event* here is what yields tokens in one go: the prefill, a re-prefill after a retraction (one token each),
or a verify step (1 to num_steps + 1 tokens).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import isclose

from backend.events import Counters, Exactness, Source


@dataclass(frozen=True)
class Label:
    """The source of one token; its verify step (0 = prefill) and place in the step, None where hidden."""

    source: Source
    step: int | None
    place: int | None


@dataclass(frozen=True)
class Attribution:
    """One label per kept token, how far to trust them, and the counter identities that failed."""

    labels: tuple[Label, ...]
    exactness: Exactness
    violations: tuple[str, ...] = ()


FIRST = Label(Source.FIRST, 0, 0)
_HIDDEN = Label(Source.UNCERTAIN, None, None)


def label_unknown(size: int, *, first: bool) -> tuple[Label, ...]:
    """Labels of a chunk from a server that does not say whether it speculates: only the prefill's token is known.

    `first` says whether this is the first chunk, which begins with that token.
    """
    return (FIRST, *(_HIDDEN,) * (size - 1)) if first and size else (_HIDDEN,) * size


def attribute_unknown(sizes: Sequence[int], *, ended: bool = True) -> Attribution:
    """`attribute` for a server that says neither whether it speculates nor how many steps it took."""
    labels = label_unknown(sum(sizes), first=True)
    return _grade(labels, Exactness.EXACT) if ended else Attribution(labels, Exactness.PROVISIONAL)


def infer_steps(counters: Counters | None) -> int | None:
    """The drafts per verify step that counters tell, 0 where there was no verify step; None where they do not.

    Of a tree this is more than the longest run of drafts; labels that it proves are certain all the same.
    """
    if counters is None or counters.verify_steps is None:
        return None
    if counters.verify_steps == 0:
        return 0
    steps, rest = divmod(counters.proposed or 0, counters.verify_steps)
    return steps if steps and not rest else None


def label_live(size: int, step: int | None, num_steps: int) -> tuple[tuple[Label, ...], int | None]:
    """Label a chunk of `size` tokens as it arrives, before the counters are known.

    `step` is the number of the next event (0: the prefill; None: lost behind a merged chunk). Returns the
    provisional labels and the number of the event after them. A chunk that fits one step is taken for one step;
    the last chunk may turn out to be cut, so hold it until `attribute` can settle it.
    """
    if size == 0:
        return (), step
    if step == 0:
        rest, following = label_live(size - 1, 1, num_steps)
        return (FIRST, *rest), following
    if num_steps == 0:
        return _label_plain(size, step), None if step is None else step + size
    if size <= num_steps + 1:
        return _label_step(size, step), None if step is None else step + 1
    return _label_merged(size), None


def attribute(
    sizes: Sequence[int],
    counters: Counters | None,
    num_steps: int,
    *,
    drafts_per_step: int | None = None,
    accept_lengths: Sequence[int] | None = None,
    ended: bool = True,
) -> Attribution:
    """Label every kept token of a stream, given its chunk sizes and the engine's counters.

    `num_steps` is 0 for a server that does not speculate. `drafts_per_step` (default `num_steps`) is what the
    engine proposes per step; a tree proposes more than it is deep. `accept_lengths`, where a server tells them,
    are the accepted drafts of each step in order, with or without the token of the target. `ended` says whether
    the stream reached its end.

    A label other than `uncertain` is certain when exactness is `exact` or `partial` (DESIGN: exactness).
    """
    sizes = [size for size in sizes if size > 0]
    if not ended:
        return Attribution(_label_all_live(sizes, num_steps), Exactness.PROVISIONAL)
    kept = sum(sizes)
    violations = () if counters is None else check_counters(counters, drafts_per_step or num_steps)
    if violations or (counters is not None and counters.completion_tokens != kept):
        return _give_up(kept, violations or ("the chunks hold another number of tokens than completion_tokens",))
    if num_steps == 0:
        return _attribute_plain(kept, counters)
    events = _split_first(sizes)
    totals = _read_totals(counters, kept)
    if totals is None:
        return _grade(_label_without_counters(events), Exactness.PARTIAL)
    verify_steps, accepted, retractions = totals
    if accept_lengths is not None and retractions == 0:
        told = _attribute_told(kept, verify_steps, accepted, accept_lengths, num_steps)
        if told is not None:
            return told
    return _attribute_counted(events, totals, num_steps, None if counters is None else counters.histogram)


def check_counters(counters: Counters, drafts_per_step: int) -> tuple[str, ...]:
    """Return the identities that the engine's counters break, each as a sentence; empty where all hold.

    proposed = verify_steps * drafts_per_step; accept_rate = accepted / proposed; the histogram sums to
    verify_steps; weighted by k it sums to accepted; accept_length = completion_tokens / verify_steps. An identity
    with a part that the server did not send is not checked, nor are the ratios where there was no verify step.
    """
    steps, accepted, proposed = counters.verify_steps, counters.accepted, counters.proposed
    histogram = counters.histogram
    broken = []
    if steps is not None and proposed is not None and proposed != steps * drafts_per_step:
        broken.append(f"{proposed} proposed drafts are not {steps} verify steps of {drafts_per_step}")
    if (
        counters.accept_rate is not None
        and accepted is not None
        and proposed
        and not _agree(counters.accept_rate, accepted / proposed)
    ):
        broken.append(f"the acceptance rate {counters.accept_rate:.4g} is not {accepted} of {proposed}")
    if steps is not None and histogram is not None and sum(histogram) != steps:
        broken.append(f"the histogram counts {sum(histogram)} verify steps, not {steps}")
    if accepted is not None and histogram is not None:
        weighted = sum(drafts * count for drafts, count in enumerate(histogram))
        if weighted != accepted:
            broken.append(f"the histogram counts {weighted} accepted drafts, not {accepted}")
    if (
        counters.accept_length is not None
        and steps
        and not _agree(counters.accept_length, counters.completion_tokens / steps)
    ):
        broken.append(
            f"the acceptance length {counters.accept_length:.4g} is not "
            f"{counters.completion_tokens} tokens over {steps} verify steps"
        )
    return tuple(broken)


def find_cut(counters: Counters) -> int | None:
    """Return how many verified tokens were dropped behind the stop: 1 + R + A + V - N. None without V and A."""
    if counters.verify_steps is None or counters.accepted is None:
        return None
    produced = 1 + counters.retractions + counters.accepted + counters.verify_steps
    return produced - counters.completion_tokens


def _agree(told: float, computed: float) -> bool:
    return isclose(told, computed, rel_tol=1e-3, abs_tol=1e-3)


def _split_first(sizes: Sequence[int]) -> list[int]:
    """The prefill yields exactly one token, so a larger first chunk is the prefill and what merged with it."""
    if sizes and sizes[0] > 1:
        return [1, sizes[0] - 1, *sizes[1:]]
    return list(sizes)


def _read_totals(counters: Counters | None, kept: int) -> tuple[int, int, int] | None:
    """V, A and R; None where the server did not tell. A reply of one token has had no verify step."""
    retractions = 0 if counters is None else counters.retractions
    if counters is not None and counters.verify_steps is not None and counters.accepted is not None:
        return counters.verify_steps, counters.accepted, retractions
    if kept <= 1:
        return 0, 0, retractions
    return None


def _attribute_plain(kept: int, counters: Counters | None) -> Attribution:
    if counters is not None and counters.verify_steps:
        return _give_up(kept, (f"{counters.verify_steps} verify steps on a server that does not speculate",))
    if kept == 0:
        return Attribution((), Exactness.EXACT)
    return Attribution((FIRST, *_label_plain(kept - 1, 1)), Exactness.EXACT)


def _attribute_told(
    kept: int, verify_steps: int, accepted: int, accept_lengths: Sequence[int], num_steps: int
) -> Attribution | None:
    """Label from the engine's own ordered accept lengths; None where they do not fit its totals."""
    if len(accept_lengths) != verify_steps:
        return None
    if sum(accept_lengths) == accepted:
        runs = [length + 1 for length in accept_lengths]
    elif sum(accept_lengths) == accepted + verify_steps:
        runs = list(accept_lengths)
    else:
        return None
    if any(not 1 <= run <= num_steps + 1 for run in runs) or not 0 <= 1 + sum(runs) - kept <= num_steps:
        return None
    labels = [FIRST]
    for step, run in enumerate(runs, start=1):
        labels += _label_step(run, step)
    return Attribution(tuple(labels[:kept]), Exactness.EXACT)


def _attribute_counted(
    sizes: Sequence[int], totals: tuple[int, int, int], num_steps: int, histogram: Sequence[int] | None
) -> Attribution:
    verify_steps, accepted, retractions = totals
    kept = sum(sizes)
    events = 1 + retractions + verify_steps
    cut = events + accepted - kept
    if len(sizes) > events or not 0 <= cut <= num_steps or not sizes:
        return _give_up(kept, ("the counters do not add up to the tokens that came",))
    raw = [*sizes[:-1], sizes[-1] + cut]
    longest = num_steps + 1
    need = [-(-size // longest) for size in raw]
    spare = events - sum(need)
    if spare < 0:
        return _give_up(kept, ("there are more tokens than the verify steps can yield",))
    if accepted == 0:
        raw, need, spare = [1] * events, [1] * events, 0
    labels, runs = _label_chunks(raw, need, spare, num_steps, numbered=retractions == 0)
    attribution = _grade(labels[:kept], Exactness.EXACT)
    if attribution.exactness is Exactness.EXACT and not _fits_histogram(runs, histogram, retractions):
        return _give_up(kept, ("the chunks accept another number of drafts per step than the histogram",))
    return attribution


def _label_chunks(
    raw: Sequence[int], need: Sequence[int], spare: int, num_steps: int, *, numbered: bool
) -> tuple[list[Label], list[int]]:
    """Take chunks apart where they can be; also the sizes of the events after the prefill that were found."""
    longest = num_steps + 1
    labels = [FIRST]
    runs: list[int] = []
    step: int | None = 1
    for size, least in zip(raw[1:], need[1:], strict=True):
        if not numbered and size == 1:
            step = None  # a verify step or a re-prefill: the same label, but no step can be counted on from here
        if size == 1 or (spare == 0 and least == 1):
            pieces = [size]
        elif spare == 0 and size == least * longest:
            pieces = [longest] * least
        else:
            labels += _label_merged(size)
            step = step + least if step is not None and spare == 0 and numbered else None
            continue
        for piece in pieces:
            labels += _label_step(piece, step)
            step = None if step is None else step + 1
        runs += pieces
    return labels, runs


def _fits_histogram(runs: Sequence[int], histogram: Sequence[int] | None, retractions: int) -> bool:
    if histogram is None:
        return True
    counted = Counter(run - 1 for run in runs)
    counted[0] -= retractions
    told = Counter({drafts: count for drafts, count in enumerate(histogram) if count})
    return +counted == told


def _label_without_counters(sizes: Sequence[int]) -> list[Label]:
    """What holds without counters: the prefill's token, and the target's at the end of each chunk but the last."""
    labels = [FIRST]
    for size in sizes[1:-1]:
        labels += _label_merged(size)
    if len(sizes) > 1:
        labels += [_HIDDEN] * sizes[-1]
    return labels


def _label_all_live(sizes: Sequence[int], num_steps: int) -> tuple[Label, ...]:
    labels: list[Label] = []
    step: int | None = 0
    for size in sizes:
        chunk, step = label_live(size, step, num_steps)
        labels += chunk
    return tuple(labels)


def _label_step(size: int, step: int | None) -> tuple[Label, ...]:
    drafts = tuple(Label(Source.DRAFT, step, place) for place in range(size - 1))
    return (*drafts, Label(Source.TARGET, step, size - 1))


def _label_merged(size: int) -> tuple[Label, ...]:
    return (*[_HIDDEN] * (size - 1), Label(Source.TARGET, None, None))


def _label_plain(size: int, step: int | None) -> tuple[Label, ...]:
    """Without a draft each token is the target's own, from a forward of its own."""
    return tuple(
        Label(Source.TARGET, None if step is None else step + offset, None if step is None else 0)
        for offset in range(size)
    )


def _grade(labels: Sequence[Label], best: Exactness) -> Attribution:
    certain = all(label.source is not Source.UNCERTAIN for label in labels)
    return Attribution(tuple(labels), best if certain else Exactness.PARTIAL)


def _give_up(kept: int, violations: tuple[str, ...]) -> Attribution:
    return Attribution((_HIDDEN,) * kept, Exactness.INCONSISTENT, violations)
