"""Where a reply ends: stop string before stop token before length, wherever steps happen to end."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from backend.embedded.stop import Finish, StopRule, cut_at_stop, may_be_stopping
from tests.closed_form_engine import build_chain_tokenizer

TOKENIZER = build_chain_tokenizer()
LETTERS = "abc "


def decode_words(ids: Sequence[int]) -> str:
    return str(TOKENIZER.decode(list(ids), skip_special_tokens=False))


def decode_letters(ids: Sequence[int]) -> str:
    return "".join(LETTERS[token % len(LETTERS)] for token in ids)


def run_in_steps(ids: list[int], sizes: list[int], rule: StopRule) -> Finish | None:
    """The first finish when `ids` arrive in steps of `sizes`, as the scheduler sees them."""
    seen: list[int] = []
    for size in sizes:
        new = ids[len(seen) : len(seen) + size]
        if not new:
            break
        seen.extend(new)
        finish = cut_at_stop(seen, len(new), rule, decode_letters)
        if finish is not None:
            return finish
    return None


replies = st.lists(st.integers(0, 15), min_size=1, max_size=40)
rules = st.builds(
    StopRule,
    max_new_tokens=st.integers(1, 45),
    strings=st.lists(st.text(LETTERS, min_size=1, max_size=4), max_size=2).map(tuple),
    token_ids=st.frozensets(st.integers(0, 15), max_size=2),
)


@given(ids=replies, rule=rules, data=st.data())
def test_one_token_per_step_and_many_cut_at_the_same_place(ids: list[int], rule: StopRule, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=len(ids), max_size=len(ids)))
    alone = run_in_steps(ids, [1] * len(ids), rule)
    together = run_in_steps(ids, sizes, rule)
    assert (alone is None) == (together is None)
    if alone is not None and together is not None and not rule.strings:
        assert alone == together
    if together is not None:
        assert 1 <= together.kept <= min(len(ids), rule.max_new_tokens)


@given(ids=replies, rule=rules, data=st.data())
def test_a_cut_is_explained_by_what_is_kept(ids: list[int], rule: StopRule, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=len(ids), max_size=len(ids)))
    finish = run_in_steps(ids, sizes, rule)
    kept = ids[: finish.kept] if finish else ids
    if finish is None:
        assert len(ids) < rule.max_new_tokens
        assert not set(ids) & rule.token_ids
        assert not any(string in decode_letters(ids) for string in rule.strings)
    elif finish.kind == "length":
        assert finish.kept == rule.max_new_tokens
    elif isinstance(finish.matched, str):
        assert finish.matched in decode_letters(kept)
        assert finish.matched not in decode_letters(kept[:-1])
    else:
        assert kept[-1] == finish.matched


@given(ids=replies, strings=st.lists(st.text(LETTERS, min_size=1, max_size=4), min_size=1, max_size=2))
def test_text_waits_exactly_while_its_end_could_begin_a_stop_string(ids: list[int], strings: list[str]) -> None:
    text = decode_letters(ids)
    begins = any(text.endswith(string[:length]) for string in strings for length in range(1, len(string) + 1))
    assert may_be_stopping(ids, StopRule(99, tuple(strings)), decode_letters) == begins


def test_a_stop_token_inside_a_step_drops_what_follows_it() -> None:
    assert cut_at_stop([4, 5, 6, 7], 4, StopRule(99, token_ids=frozenset({6})), decode_words) == Finish("stop", 3, 6)


def test_a_stop_string_beats_a_stop_token_of_the_same_step() -> None:
    rule = StopRule(99, ("w7",), frozenset({5}))
    assert cut_at_stop([4, 5, 6, 7], 4, rule, decode_words) == Finish("stop", 4, "w7")


def test_a_stop_beyond_the_length_is_a_length_finish() -> None:
    rule = StopRule(2, token_ids=frozenset({6}))
    assert cut_at_stop([4, 5, 6, 7], 4, rule, decode_words) == Finish("length", 2)


def test_a_stop_at_the_last_allowed_token_is_a_stop() -> None:
    rule = StopRule(3, token_ids=frozenset({6}))
    assert cut_at_stop([4, 5, 6, 7], 4, rule, decode_words) == Finish("stop", 3, 6)


def test_a_stop_string_may_span_steps() -> None:
    assert cut_at_stop([4, 5, 6], 1, StopRule(99, ("w5 w6",)), decode_words) == Finish("stop", 3, "w5 w6")
