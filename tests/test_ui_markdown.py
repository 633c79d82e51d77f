"""How model text becomes Markdown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ui.markdown import escape_markup


def test_raw_html_becomes_text() -> None:
    assert escape_markup('a <img src=x onerror="alert(1)"> b') == 'a &lt;img src=x onerror="alert(1)"> b'


def test_an_image_is_not_fetched() -> None:
    assert "![" not in escape_markup("![x](http://example.org/track.png)")


def test_an_entity_stays_as_it_was_written() -> None:
    assert escape_markup("&lt; & a") == "&amp;lt; & a"


@pytest.mark.parametrize(
    "code", ["```html\n<b>&lt;</b>\n```", "`<b>`", "``a ` <b>``", "```\n<b> still open", "~~~\n<b>\n~~~"]
)
def test_code_is_left_alone_even_while_its_fence_is_open(code: str) -> None:
    assert escape_markup(f"before\n{code}") == f"before\n{code}"


@pytest.mark.parametrize("formula", ["$a < b$", "$$a < b$$", r"\(a < b\)", r"\[a < b\]"])
def test_formulas_keep_their_delimiters(formula: str) -> None:
    assert escape_markup(formula) == formula.replace("<", "&lt;")


@pytest.mark.parametrize("prices", ["notebooks at $3 each and 4 pens at $2 each", "$5-$6", "it costs $ 5 $"])
def test_prices_are_no_formulas(prices: str) -> None:
    assert escape_markup(prices) == prices.replace("$", "<span>&#36;</span>")


@given(st.text(alphabet=st.sampled_from("ab <>&;!["), max_size=40))
def test_prose_without_code_never_opens_a_tag(text: str) -> None:
    assert "<" not in escape_markup(text)
    assert "![" not in escape_markup(text)
