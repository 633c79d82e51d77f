"""The Backend tab in a real browser: there for the person at the machine, and for nobody who comes through a link."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser import ChainApp, ask, browser, chain_app, open_app, page, wait_for_reply

pytestmark = pytest.mark.browser


def test_the_servers_are_shown_to_a_local_visitor(page: Page, chain_app: ChainApp) -> None:
    open_app(page, chain_app.url)
    ask(page, "w9 w10")
    wait_for_reply(page)
    page.get_by_role("tab", name="Backend").click()
    card = page.locator("#backend-eagle")
    expect(card).to_contain_text("0 running, 0 queued", timeout=20_000)
    expect(card).to_contain_text(chain_app.server.eagle.url)
    expect(card).to_contain_text("EAGLE3, 3 steps, topk 1, 4 draft tokens")
    expect(card.locator("dt", has_text="τ, server-wide").locator("+ dd")).to_have_text("2.50")
    expect(page.locator("#backend-baseline")).to_contain_text("none")
    expect(page.locator("#backend-eagle-restart")).to_have_count(0)


def test_a_visitor_through_a_link_gets_nothing_of_it(page: Page, chain_app: ChainApp) -> None:
    page.set_extra_http_headers({"X-Forwarded-For": "203.0.113.7"})
    open_app(page, chain_app.url)
    page.wait_for_timeout(1000)
    expect(page.get_by_role("tab", name="Chat")).to_be_visible()
    expect(page.get_by_role("tab", name="Backend")).to_have_count(0)
    assert chain_app.server.eagle.url not in page.content()
