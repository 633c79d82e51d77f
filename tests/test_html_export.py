"""An exported recording is one page: it needs nothing else, and no text in it can become part of the page."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.errors import RecordingError
from tests.recordings import make_pair, name_pieces
from ui import replay_view
from ui.html_export import embed_json, export_html

HOSTILE = (
    "</script><script>document.title='owned'</script>",
    "<!--<script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "\u2028\u2029",
    "$title ${style} `${1}`",
    "&lt;b&gt;",
)


class Elements(HTMLParser):
    """Collects what a browser would see: tags with their attributes, and the text of scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._in_script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in_script = tag == "script"
        if self._in_script:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_script = self._in_script and tag != "script"

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts[-1] += data


def read(page: str) -> Elements:
    elements = Elements()
    elements.feed(page)
    return elements


def test_the_page_loads_nothing_from_anywhere() -> None:
    page = export_html(make_pair(name_pieces(8), [2, 3]))
    assert not [
        attributes for _, attributes in read(page).tags if {"src", "href", "srcset", "action"} & set(attributes)
    ]
    assert not re.search(r"@import|url\(", page)
    assert page.count("http") == page.count('"http://www.w3.org/2000/svg"') + page.count("http-equiv")


def test_only_the_scripts_and_the_style_of_the_page_may_run() -> None:
    page = export_html(make_pair(name_pieces(8), [2, 3]))
    elements = read(page)
    policy = next(
        attributes["content"] or "" for tag, attributes in elements.tags if "http-equiv" in attributes and tag == "meta"
    )
    digest = base64.b64encode(hashlib.sha256(elements.scripts[-1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")


def test_hostile_text_adds_no_element_and_comes_back_whole() -> None:
    pieces = list(HOSTILE)
    plain = export_html(make_pair(name_pieces(6), [2, 1]))
    hostile_pair = replace(make_pair(pieces, [2, 1], title="".join(HOSTILE)), words={900: HOSTILE[0]})
    hostile = export_html(hostile_pair)
    names = [[tag for tag, _ in read(page).tags] for page in (plain, hostile)]
    assert names[0] == names[1]
    data = json.loads(read(hostile).scripts[0])
    left = json.loads(next(value for element, _, value in data if element == "left"))
    assert [row[0] for row in left["tokens"]] == pieces


@given(st.text())
def test_embedded_json_holds_no_character_that_means_something_to_a_parser(text: str) -> None:
    embedded = embed_json({text: [text]})
    assert not set("<>&\u2028\u2029") & set(embedded)
    assert json.loads(embedded) == {text: [text]}


def test_a_recording_too_long_for_a_page_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_view, "MAX_SHOWN_TOKENS", 10)
    with pytest.raises(RecordingError, match="has 16 tokens; the page shows at most 10"):
        export_html(make_pair(name_pieces(8), [2, 3]))
