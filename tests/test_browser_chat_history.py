"""What the Chat tab does with a prompt that was stopped and with earlier replies, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Page, expect

from backend.embedded_process import EngineStage
from tests.browser import ChainApp, ask, browser, chain_app, open_app, page, serve, wait_for_reply, wait_until
from tests.chunk_server import ChunkServer, Script
from ui.engines import Engines
from ui.page import build_page
from ui.share import ShareLink

pytestmark = pytest.mark.browser

SCRIPT = Script.from_steps([0, 3] * 4, 3)


@contextmanager
def serve_app(eagle: ChunkServer) -> Iterator[str]:
    """A fresh app with one lane."""
    stage = EngineStage("ready", "Attached", 1.0, eagle.url, None)
    with serve(build_page(Engines(lambda: stage), ShareLink(print).state)) as url:
        yield url


def first_words(page: Page) -> str:
    """How the text in the token view begins."""
    return page.locator("#chat-tokens .tokens").inner_text().strip()[:7]


def test_a_prompt_stopped_before_it_was_turned_into_tokens_comes_back(page: Page) -> None:
    with ChunkServer(SCRIPT, waits={"/tokenize": 5.0}) as eagle, serve_app(eagle) as url:
        open_app(page, url)
        ask(page, "w9 w10")
        wait_until(lambda: bool(eagle.asked("/tokenize")))
        expect(page.locator("#chat-prompt textarea")).to_have_value("")
        page.locator("#chat-stop:enabled").click()
        expect(page.locator("#chat-prompt textarea")).to_have_value("w9 w10")
        expect(page.locator("#chat-window")).not_to_contain_text("w9 w10")
        expect(page.locator("#chat-send")).to_be_enabled()
        assert not eagle.asked("/v1/completions")
        eagle.waits = {}
        page.locator("#chat-send").click()
        wait_for_reply(page)
        assert len(eagle.asked("/v1/completions")) == 1


@pytest.mark.heavy
def test_an_earlier_reply_shows_its_tokens_when_clicked_also_after_a_reload(page: Page, chain_app: ChainApp) -> None:
    open_app(page, chain_app.url)
    ask(page, "w9 w10")
    wait_for_reply(page)
    ask(page, "w299 w300")
    expect(page.locator("#chat-stop")).to_be_enabled()
    wait_for_reply(page)
    assert first_words(page) == "w301 w3"
    for _ in range(2):
        page.locator("#chat-window .bot.message", has_text="w11 w12").first.click()
        expect(page.locator("#chat-tokens .tokens")).to_contain_text("w11 w12")
        assert page.locator("#chat-tokens .tokens .token.draft").count() > 0
        page.locator("#chat-window .user.message", has_text="w299 w300").first.click()
        expect(page.locator("#chat-tokens .tokens")).to_contain_text("w301 w302")
        open_app(page, chain_app.url)
        expect(page.locator("#chat-tokens .tokens")).to_contain_text("w301 w302")


@pytest.mark.heavy
def test_a_reply_that_the_app_has_forgotten_is_said_to_have_lost_its_tokens(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ui.live_runs.KEPT", 1)
    with ChunkServer(SCRIPT) as eagle, serve_app(eagle) as url:
        open_app(page, url)
        for prompt in ("one", "two", "three"):
            ask(page, prompt)
            expect(page.locator("#chat-window")).to_contain_text(prompt)
            wait_for_reply(page)
        open_app(page, url)
        expect(page.locator("#chat-tokens .tokens")).to_contain_text("w10 w11")
        page.locator("#chat-window .bot.message", has_text="w10 w11").first.click()
        expect(page.locator("#chat-notice")).to_contain_text("no longer known")
