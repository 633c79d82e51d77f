"""Text grows with the ids, joins to the whole text, and never shows half a character."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from backend.embedded.detokenizer import Detokenizer, certain_part
from tests.closed_form_engine import build_chain_tokenizer


def build_byte_tokenizer() -> Tokenizer:
    """One token per byte, as a byte-level BPE spells what it has no word for."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


BYTES = build_byte_tokenizer()
WORDS = build_chain_tokenizer()


@given(text=st.text(max_size=60), data=st.data())
def test_deltas_join_to_the_whole_text_however_the_ids_arrive(text: str, data: st.DataObject) -> None:
    ids = BYTES.encode(text).ids
    detokenizer = Detokenizer(BYTES, BYTES.encode("before").ids)
    deltas = []
    start = 0
    while start < len(ids):
        size = data.draw(st.integers(1, 4))
        deltas.append(detokenizer.advance(ids[start : start + size]))
        start += size
    deltas.append(detokenizer.finish((), None))
    assert "".join(deltas) == BYTES.decode(ids)
    if "\ufffd" not in text:
        assert not any("\ufffd" in delta for delta in deltas)


def test_a_character_is_held_back_until_its_last_byte() -> None:
    detokenizer = Detokenizer(BYTES, ())
    ids = BYTES.encode("🦅").ids
    assert [detokenizer.advance([token]) for token in ids] == ["", "", "", "🦅"]


def test_the_words_before_an_incomplete_character_are_shown() -> None:
    detokenizer = Detokenizer(BYTES, ())
    ids = BYTES.encode("an eagle 🦅").ids
    assert detokenizer.advance(ids[:-1]) == "an eagle "
    assert detokenizer.advance(ids[-1:]) == "🦅"


def test_what_never_becomes_a_character_is_shown_at_the_end() -> None:
    detokenizer = Detokenizer(BYTES, ())
    assert detokenizer.advance(BYTES.encode("🦅").ids[:2]) == ""
    assert detokenizer.finish((), None) == "\ufffd"


def test_a_word_gets_the_space_that_its_place_behind_the_prompt_asks_for() -> None:
    assert Detokenizer(WORDS, [7, 8, 9]).advance([10]) == " w10"
    assert Detokenizer(WORDS, [1, 1]).advance([10]) == "w10"


def test_a_stop_token_brings_no_text() -> None:
    detokenizer = Detokenizer(WORDS, [7])
    assert detokenizer.finish([8, 9], matched=9) == " w8"


def test_a_stop_string_and_what_follows_it_is_left_out() -> None:
    detokenizer = Detokenizer(WORDS, [7])
    detokenizer.advance([8])
    assert detokenizer.finish([9, 10, 11], matched="w10") == " w9 "


def test_a_stop_string_is_shown_where_asked_for() -> None:
    detokenizer = Detokenizer(WORDS, [7], keep_stop=True)
    assert detokenizer.finish([8, 9, 10, 11], matched="w10") == " w8 w9 w10"


def test_special_tokens_are_hidden_unless_asked_for() -> None:
    assert Detokenizer(WORDS, ()).advance([5, 1023]) == "w5"
    assert Detokenizer(WORDS, (), skip_special_tokens=False).advance([5, 1023]) == "w5 </s>"


@pytest.mark.parametrize(
    ("text", "certain"),
    [
        ("", ""),
        ("eag\ufffd", ""),
        ("an eag\ufffd", "an "),
        ("line\n", "line\n"),
        ("山", "山"),
        ("山\ufffd", "山"),
    ],
)
def test_only_what_cannot_change_is_certain(text: str, certain: str) -> None:
    assert certain_part(text) == certain
