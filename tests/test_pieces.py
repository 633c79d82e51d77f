"""Pieces join to exactly the server's text, and a split character goes to the token that completes it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from backend.pieces import (
    INCOMPLETE,
    Split,
    find_anchor,
    find_spans,
    list_windows,
    read_windows,
    split_text,
    strip_anchor,
)

CORPUS = ["the quick brown fox and the lazy dog", "naïve café: 12 + 30 = 42", "日本語のテキスト", "🦅 eagle 👩‍🚀 lens"]


def train_tokenizer() -> Tokenizer:
    """A byte-level BPE tokenizer as Llama 3, Qwen and SmolLM2 have, so small that most characters are split."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    return tokenizer


TOKENIZER = train_tokenizer()
VOCABULARY = tuple(TOKENIZER.decode([token]) for token in range(TOKENIZER.get_vocab_size()))
TEXTS = st.text(st.one_of(st.sampled_from("the fox 日本 🦅é👩‍🚀 ab"), st.characters(codec="utf-8")), max_size=24)


def stream(ids: list[int], sizes: list[int]) -> list[tuple[list[int], str]]:
    """Chunks as SGLang sends them: text that ends inside a character is held back to the last space before it."""
    chunks: list[tuple[list[int], str]] = []
    at = sent = 0
    while at < len(ids):
        size = sizes[len(chunks) % len(sizes)]
        text = TOKENIZER.decode(ids[: at + size])
        if text.endswith(INCOMPLETE) and at + size < len(ids):
            text = text[: max(sent, text.rfind(" ") + 1)]
        chunks.append((ids[at : at + size], text[sent:]))
        sent = max(sent, len(text))
        at += size
    return chunks


def split_stream(chunks: list[tuple[list[int], str]], vocabulary: tuple[str, ...]) -> list[Split]:
    splits: list[Split] = []
    for ids, text in chunks:
        splits.append(split_text(ids, text, vocabulary, in_step=not splits or splits[-1].settled))
    return splits


def settle(ids: list[int], chunks: list[tuple[list[int], str]], splits: list[Split]) -> list[str]:
    pieces = [piece for split in splits for piece in split.pieces]
    for span in find_spans([(len(c), text, s.settled) for (c, text), s in zip(chunks, splits, strict=True)]):
        found = read_windows(span, [TOKENIZER.decode(list(window)) for window in list_windows(ids, span)])
        assert found is not None, span
        pieces[span.start : span.stop] = found
    return pieces


def true_pieces(ids: list[int]) -> list[str]:
    """By definition: what each token adds to the decoded text once incomplete characters are left out."""
    ends = [TOKENIZER.decode(ids[:stop]).rstrip(INCOMPLETE) for stop in range(len(ids) + 1)]
    return [after[len(before) :] for before, after in pairwise(ends)]


@settings(max_examples=100, deadline=None)
@given(TEXTS, st.lists(st.integers(1, 5), min_size=1, max_size=6), st.booleans())
def test_final_pieces_are_the_tokens_own_text(text: str, sizes: list[int], with_vocabulary: bool) -> None:
    ids = TOKENIZER.encode(text).ids
    chunks = stream(ids, sizes)
    splits = split_stream(chunks, VOCABULARY if with_vocabulary else ())
    assert settle(ids, chunks, splits) == true_pieces(ids)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 320), max_size=5), st.text(max_size=8)), max_size=8),
    st.booleans(),
)
def test_live_pieces_join_to_the_chunks_text_whatever_the_server_sends(
    chunks: list[tuple[list[int], str]], in_step: bool
) -> None:
    for ids, text in chunks:
        split = split_text(ids, text, VOCABULARY, in_step=in_step)
        assert len(split.pieces) == len(ids)
        assert "".join(split.pieces) == (text if ids else "")


@settings(max_examples=100, deadline=None)
@given(TEXTS, st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_a_piece_that_is_called_settled_is_the_tokens_own_text(text: str, sizes: list[int]) -> None:
    ids = TOKENIZER.encode(text).ids
    chunks = stream(ids, sizes)
    truth = true_pieces(ids)
    at = 0
    for split in split_stream(chunks, VOCABULARY):
        if split.settled:
            assert list(split.pieces) == truth[at : at + len(split.pieces)]
        at += len(split.pieces)


def test_plain_text_needs_no_decoding_at_the_end() -> None:
    ids = TOKENIZER.encode("the quick brown fox and the lazy dog").ids
    chunks = stream(ids, [1, 4])
    splits = split_stream(chunks, VOCABULARY)
    assert all(split.settled for split in splits)
    assert [piece for split in splits for piece in split.pieces] == true_pieces(ids)


def test_an_emoji_goes_to_the_token_that_completes_it() -> None:
    ids = TOKENIZER.encode("😀").ids
    assert len(ids) > 1
    chunks = stream(ids, [1])
    pieces = settle(ids, chunks, split_stream(chunks, VOCABULARY))
    assert pieces == [""] * (len(ids) - 1) + ["😀"]


def test_a_settled_chunk_follows_once_held_text_has_come() -> None:
    ids = TOKENIZER.encode("the 😀 fox and the lazy dog").ids
    splits = split_stream(stream(ids, [1]), VOCABULARY)
    assert not all(split.settled for split in splits)
    assert all(split.settled for split in splits[-4:])


def test_the_first_token_may_lose_its_leading_space() -> None:
    vocabulary = (" w0", " w1", " w2")
    assert split_text([2], "w2", vocabulary) == Split(("w2",), True)
    assert split_text([2, 0], "w2 w0", vocabulary).pieces == ("w2", " w0")


def test_text_that_comes_late_joins_the_tokens_before_it() -> None:
    assert [(span.start, span.stop, span.text) for span in find_spans([(2, "ab", True), (0, "c", False)])] == [
        (0, 2, "abc")
    ]
    assert find_spans([(2, "ab", True), (0, "", True), (1, "d", True)]) == ()


def test_windows_that_do_not_join_to_the_text_are_refused() -> None:
    (span,) = find_spans([(1, "other", False)])
    assert read_windows(span, ["", "text"]) is None


def test_bytes_that_never_became_a_character_end_the_text_as_the_server_sent_it() -> None:
    (span,) = find_spans([(2, f"a{INCOMPLETE}", False)])
    assert read_windows(span, ["", "a", "a", f"a{INCOMPLETE}"]) == ("a", INCOMPLETE)


@pytest.mark.parametrize(("decoded", "found"), [((INCOMPLETE, ".", " the"), 2), ((" ", "."), None)])
def test_an_anchor_is_a_token_of_plain_letters(decoded: tuple[str, ...], found: int | None) -> None:
    assert find_anchor(decoded) == found


def test_an_anchor_keeps_the_leading_space_that_decoding_alone_drops() -> None:
    assert strip_anchor("w0", ["w0 w1", "w0.", "w0"]) == (" w1", ".", "")
