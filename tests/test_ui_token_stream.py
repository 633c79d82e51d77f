"""What the token view is told of a run."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from backend.events import Chunk, Exactness, Source, Token
from ui.token_stream import WINDOW, StreamView, encode_update, find_thought


def make_token(index: int, piece: str = " a", step: int = 1, source: Source = Source.TARGET) -> Token:
    return Token(index, 100 + index, piece, source, step, 0, index / 10)


def make_view(tokens: list[Token], chunks: tuple[Chunk, ...] = (), done: bool = False) -> StreamView:
    return StreamView("run", "EAGLE-3", "", tokens, chunks, Exactness.PROVISIONAL, done, ("a", "b", "c"))


@given(st.integers(0, 400))
def test_an_update_holds_the_last_tokens_and_says_where_they_begin(count: int) -> None:
    update = json.loads(encode_update(make_view([make_token(index) for index in range(count)])))
    assert update["total"] == count
    assert len(update["tokens"]) == min(count, WINDOW)
    assert [row[4] for row in update["tokens"]] == [100 + index for index in range(update["first"], count)]


@given(st.lists(st.text(), max_size=20))
def test_pieces_reach_the_page_unchanged_whatever_they_hold(pieces: list[str]) -> None:
    tokens = [make_token(index, piece) for index, piece in enumerate(pieces)]
    update = json.loads(encode_update(make_view(tokens), None))
    assert [row[0] for row in update["tokens"]] == pieces


def test_a_step_tells_what_was_proposed_and_how_much_of_it_was_accepted() -> None:
    tokens = [make_token(0, step=0), make_token(1, source=Source.DRAFT), make_token(2)]
    chunks = (Chunk(0.0, (100,), ""), Chunk(0.1, (101, 102), "", proposed=(101, 2, 999)))
    update = json.loads(encode_update(make_view(tokens, chunks), None))
    assert update["proposed"] == [[1, 1, [101, 2, 999], [None, "c", None]]]


def test_the_badge_of_a_partly_uncertain_run_says_how_many_labels_are_missing() -> None:
    tokens = [make_token(0, source=Source.FIRST), make_token(1, source=Source.UNCERTAIN)]
    view = StreamView("run", "", "", tokens, (), Exactness.PARTIAL, True)
    assert json.loads(encode_update(view))["badge"]["text"] == "1 labels uncertain"


def test_thinking_ends_behind_its_closing_mark_even_if_the_template_opened_it() -> None:
    tokens = [make_token(index, piece) for index, piece in enumerate(["Hm", " so", "</think>", "Yes"])]
    assert find_thought(tokens) == (0, 3)
    assert find_thought([make_token(0, "<think>"), make_token(1, "Hm")]) == (0, None)
    assert find_thought([make_token(0, "Yes")]) == (None, None)
