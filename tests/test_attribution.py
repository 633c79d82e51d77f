"""Labels are never certain and wrong, whatever merged on the way and wherever the reply was cut."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.attribution import FIRST, Label, attribute, check_counters, find_cut, label_live
from backend.events import Counters, Exactness, Source

F, D, T, U = Source.FIRST, Source.DRAFT, Source.TARGET, Source.UNCERTAIN


@dataclass(frozen=True)
class Stream:
    """What an engine did, as only it knows it, and what came over the wire."""

    num_steps: int
    sizes: tuple[int, ...]
    counters: Counters
    truth: tuple[Label, ...]
    accept_lengths: tuple[int, ...]
    merged: bool


def play(num_steps: int, accepts: list[int | None], cut: int, merges: list[bool]) -> Stream:
    """Run an engine on paper: `accepts[i]` drafts in step i, None for a re-prefill; `merges[i]` joins i to i + 1."""
    runs = [1, *(1 if accept is None else accept + 1 for accept in accepts)]
    truth = [FIRST]
    step = 0
    for accept in accepts:
        if accept is None:
            truth.append(Label(T, None, None))
            continue
        step += 1
        truth += [Label(D, step, place) for place in range(accept)] + [Label(T, step, accept)]
    cut = min(cut, runs[-1] - 1)
    runs[-1] -= cut
    kept = sum(runs)
    sizes = [runs[0]]
    for run, merge in zip(runs[1:], merges, strict=False):
        if merge:
            sizes[-1] += run
        else:
            sizes.append(run)
    drafts = [accept for accept in accepts if accept is not None]
    steps, accepted = len(drafts), sum(drafts)
    counters = Counters(
        verify_steps=steps,
        accepted=accepted,
        proposed=steps * num_steps,
        completion_tokens=kept,
        retractions=len(accepts) - steps,
        histogram=tuple(drafts.count(k) for k in range(num_steps + 1)),
        accept_rate=accepted / (steps * num_steps) if steps else None,
        accept_length=kept / steps if steps else None,
    )
    return Stream(num_steps, tuple(sizes), counters, tuple(truth[:kept]), tuple(drafts), any(merges))


@st.composite
def streams(draw: st.DrawFn, *, merging: bool = True, retracting: bool = True) -> Stream:
    num_steps = draw(st.integers(1, 7))
    accept = st.one_of(
        st.integers(0, num_steps), st.sampled_from([0, num_steps]), st.none() if retracting else st.just(0)
    )
    accepts = draw(st.lists(accept, max_size=14))
    count = len(accepts)
    merges = draw(st.lists(st.booleans(), min_size=count, max_size=count)) if merging else [False] * count
    return play(num_steps, accepts, draw(st.integers(0, num_steps)), merges)


def settle(stream: Stream, **changes: object) -> tuple[tuple[Label, ...], Exactness]:
    found = attribute(stream.sizes, stream.counters, stream.num_steps, **changes)  # type: ignore[arg-type]
    return found.labels, found.exactness


def assert_no_label_is_wrong(labels: tuple[Label, ...], truth: tuple[Label, ...]) -> None:
    assert len(labels) == len(truth)
    for label, true in zip(labels, truth, strict=True):
        assert label.source in (true.source, U)
        assert label.step is None or label.step == true.step
        assert label.place is None or true.place is None or label.place == true.place


@settings(max_examples=400, deadline=None)
@given(streams())
def test_a_certain_label_is_never_wrong(stream: Stream) -> None:
    labels, exactness = settle(stream)
    assert exactness in (Exactness.EXACT, Exactness.PARTIAL)
    assert_no_label_is_wrong(labels, stream.truth)


@settings(max_examples=100, deadline=None)
@given(streams())
def test_a_certain_label_without_counters_is_never_wrong(stream: Stream) -> None:
    found = attribute(stream.sizes, None, stream.num_steps)
    assert_no_label_is_wrong(found.labels, stream.truth)


@settings(max_examples=100, deadline=None)
@given(streams(merging=False, retracting=False))
def test_one_chunk_per_step_is_always_exact_and_complete(stream: Stream) -> None:
    assert settle(stream) == (stream.truth, Exactness.EXACT)


@settings(max_examples=100, deadline=None)
@given(streams(merging=False))
def test_a_retraction_leaves_the_sources_exact(stream: Stream) -> None:
    labels, exactness = settle(stream)
    assert exactness is Exactness.EXACT
    assert [label.source for label in labels] == [label.source for label in stream.truth]


@settings(max_examples=100, deadline=None)
@given(streams())
def test_exact_totals_agree_with_the_counters(stream: Stream) -> None:
    labels, exactness = settle(stream)
    if exactness is not Exactness.EXACT:
        return
    cut = find_cut(stream.counters)
    steps, accepted = stream.counters.verify_steps, stream.counters.accepted
    assert cut is not None and steps is not None and accepted is not None
    sources = [label.source for label in labels]
    assert sources.count(F) == 1
    assert sources.count(D) == accepted - max(0, cut - 1)
    assert sources.count(T) == steps - (1 if cut > 0 else 0) + stream.counters.retractions


@settings(max_examples=100, deadline=None)
@given(streams(), st.sampled_from(["verify_steps", "accepted", "completion_tokens"]), st.sampled_from([-2, -1, 1, 2]))
def test_a_wrong_counter_makes_every_label_uncertain(stream: Stream, name: str, error: int) -> None:
    wrong = replace(stream.counters, **{name: getattr(stream.counters, name) + error})
    found = attribute(stream.sizes, wrong, stream.num_steps)
    assert found.exactness is Exactness.INCONSISTENT
    assert {label.source for label in found.labels} <= {U}
    assert found.violations


@settings(max_examples=100, deadline=None)
@given(streams(retracting=False), st.booleans())
def test_accept_lengths_told_by_the_server_settle_any_merge(stream: Stream, with_target: bool) -> None:
    told = [length + 1 for length in stream.accept_lengths] if with_target else stream.accept_lengths
    assert settle(stream, accept_lengths=told) == (stream.truth, Exactness.EXACT)


def test_accept_lengths_that_do_not_fit_are_not_believed() -> None:
    stream = play(3, [3, 0, 2], 0, [True, True, False])
    assert settle(stream, accept_lengths=[1, 1, 1]) == settle(stream)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=20))
def test_without_speculation_every_token_after_the_first_is_the_targets_merged_or_not(sizes: list[int]) -> None:
    found = attribute(sizes, Counters(None, None, None, sum(sizes)), 0)
    assert found.exactness is Exactness.EXACT
    assert [label.source for label in found.labels] == [F] + [T] * (sum(sizes) - 1)
    assert [label.step for label in found.labels] == list(range(sum(sizes)))


@settings(max_examples=100, deadline=None)
@given(streams(merging=False, retracting=False))
def test_live_labels_of_unmerged_chunks_are_right_up_to_the_cut(stream: Stream) -> None:
    live: list[Label] = []
    step: int | None = 0
    for size in stream.sizes:
        labels, step = label_live(size, step, stream.num_steps)
        live += labels
    settled = len(stream.truth) - stream.sizes[-1]
    assert tuple(live[:settled]) == stream.truth[:settled]
    assert tuple(live) == attribute(stream.sizes, None, stream.num_steps, ended=False).labels


def test_a_cut_step_ends_in_a_draft() -> None:
    labels, exactness = settle(play(3, [0, 3, 0, 3], 1, [False] * 4))
    assert exactness is Exactness.EXACT
    assert [label.source for label in labels] == [F, T, D, D, D, T, T, D, D, D]


def test_a_merged_chunk_that_is_full_throughout_is_taken_apart() -> None:
    labels, exactness = settle(play(3, [3, 3, 0], 0, [False, True, False]))
    assert exactness is Exactness.EXACT
    assert [label.source for label in labels] == [F, D, D, D, T, D, D, D, T, T]


def test_a_merged_chunk_hides_all_but_its_last_token() -> None:
    labels, exactness = settle(play(3, [3, 1, 0], 0, [False, True, False]))
    assert exactness is Exactness.PARTIAL
    assert [label.source for label in labels] == [F, U, U, U, U, U, T, T]
    assert labels[-1] == Label(T, 3, 0)


def test_where_nothing_was_accepted_a_merge_hides_nothing() -> None:
    labels, exactness = settle(play(3, [0, 0, 0, 0], 0, [True, True, False, True]))
    assert exactness is Exactness.EXACT
    assert [label.step for label in labels] == [0, 1, 2, 3, 4]


def test_a_prefill_merged_with_the_first_step_is_still_the_first_token() -> None:
    labels, exactness = settle(play(3, [2, 0], 0, [True, False]))
    assert exactness is Exactness.EXACT
    assert [label.source for label in labels] == [F, D, D, T, T]


def test_a_reply_of_one_token_is_exact_without_any_verify_step() -> None:
    found = attribute([1], Counters(None, None, None, 1), 3)
    assert (found.labels, found.exactness) == ((FIRST,), Exactness.EXACT)


def test_an_empty_reply_has_no_labels() -> None:
    assert attribute([], Counters(None, None, None, 0), 0).exactness is Exactness.EXACT
    assert attribute([], Counters(0, 0, 0, 0), 3).labels == ()


def test_a_baseline_that_counts_verify_steps_is_inconsistent() -> None:
    found = attribute([1, 1], Counters(1, 0, 0, 2), 0)
    assert found.exactness is Exactness.INCONSISTENT


def test_a_histogram_that_contradicts_the_chunks_is_inconsistent() -> None:
    stream = play(3, [3, 1, 2], 0, [False] * 3)
    shuffled = replace(stream.counters, histogram=(0, 0, 3, 0))
    assert attribute(stream.sizes, shuffled, 3).exactness is Exactness.INCONSISTENT


@given(streams())
def test_the_counters_of_an_engine_that_counts_right_break_no_identity(stream: Stream) -> None:
    assert check_counters(stream.counters, stream.num_steps) == ()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"proposed": 25}, "proposed"),
        ({"accept_rate": 0.6}, "acceptance rate"),
        ({"histogram": (4, 0, 0, 4, 1)}, "verify steps"),
        ({"histogram": (3, 1, 0, 4)}, "accepted drafts"),
        ({"accept_length": 2.6}, "acceptance length"),
    ],
)
def test_each_identity_is_checked(change: dict[str, object], named: str) -> None:
    right = Counters(8, 12, 24, 20, histogram=(4, 0, 0, 4), accept_rate=0.5, accept_length=2.5)
    assert check_counters(right, 3) == ()
    broken = check_counters(replace(right, **change), 3)  # type: ignore[arg-type]
    assert any(named in sentence for sentence in broken)


def test_a_tree_proposes_more_than_it_is_deep() -> None:
    counters = Counters(16, 23, 80, 40, histogram=(8, 0, 1, 7), accept_rate=0.2875, accept_length=2.5)
    assert check_counters(counters, 5) == ()
    assert check_counters(counters, 3)


def test_chunk_sizes_of_zero_do_not_count() -> None:
    stream = play(3, [3, 0, 2], 0, [False] * 3)
    padded = [size for chunk in stream.sizes for size in (chunk, 0)]
    assert list(accumulate(padded))[-1] == sum(stream.sizes)
    assert attribute(padded, stream.counters, 3) == attribute(stream.sizes, stream.counters, 3)
