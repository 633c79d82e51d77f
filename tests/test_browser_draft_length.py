"""Drafts per verify step in a real browser: chosen for a reply, and swept."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from playwright.sync_api import Page, expect

from tests.browser import ChainApp, ask, browser, chain_app, open_app, page, wait_for_reply, wait_until

pytestmark = [pytest.mark.browser, pytest.mark.heavy]

SOURCES = "spans => spans.map((span) => span.className.split(' ')[1])"
FINDING = re.compile(r"([1-5]) drafts? a step (?:is|are) fastest here: (\d+\.\d\d)×")  # noqa: RUF001


def choose_drafts(page: Page, label: str) -> None:
    """Open the settings, if need be, and choose how many drafts a step the next replies are written with."""
    if not page.locator("#chat-num-steps input").is_visible():
        page.locator("#chat-settings button").first.click()
    page.locator("#chat-num-steps input").click()
    page.get_by_role("option", name=label, exact=True).click()


def asked(app: ChainApp) -> list[int]:
    return [generation._num_steps for generation in app.engine.generations]


def read_sources(page: Page) -> list[str]:
    sources: list[str] = page.eval_on_selector_all("#chat-tokens .tokens .token", SOURCES)
    return sources


def test_a_reply_is_written_with_the_chosen_number_of_drafts(page: Page, chain_app: ChainApp) -> None:
    open_app(page, chain_app.url)
    choose_drafts(page, "0: draft off")
    ask(page, "w9 w10")
    wait_for_reply(page)
    assert set(read_sources(page)) == {"first", "target"}
    expect(page.locator('#chat-numbers [data-key="speedup"]')).to_contain_text("the draft was off")
    expect(page.locator("#chat-tokens .badge")).to_have_text("labels exact")
    choose_drafts(page, "1")
    ask(page, "w9 w10")
    expect(page.locator("#chat-stop")).to_be_enabled()
    wait_for_reply(page)
    sources = read_sources(page)
    assert "draft" in sources
    assert ("draft", "draft") not in pairwise(sources)
    expect(page.locator("#chat-tokens .badge")).to_have_text("labels exact")
    assert asked(chain_app) == [0, 0, 1, 0]  # each with its baseline behind it


def open_sweep(page: Page, app: ChainApp) -> None:
    """Go to the sweep's panel with a prompt."""
    open_app(page, app.url)
    page.get_by_role("tab", name="Compare").click()
    page.locator("#compare-prompt textarea").fill("w9 w10")
    page.locator("#sweep button").first.click()
    page.locator("#sweep-go").wait_for()


def test_a_sweep_draws_both_curves_live_and_names_the_best(page: Page, chain_app: ChainApp) -> None:
    chain_app.pace = 0.02
    open_sweep(page, chain_app)
    page.locator("#sweep-go").click()
    page.locator("#sweep-speeds .scatterlayer .point").nth(1).wait_for(timeout=60_000)
    assert page.locator("#sweep-speeds .scatterlayer .point").count() < 6
    expect(page.locator("#sweep-go")).to_be_disabled()
    expect(page.locator("#sweep-progress")).to_contain_text("Done: 12 runs", timeout=180_000)
    assert asked(chain_app) == [0, 5, *range(6), *reversed(range(6))]
    for name in ("speeds", "lengths"):
        expect(page.locator(f"#sweep-{name} .scatterlayer .point")).to_have_count(6)
    found = FINDING.search(page.locator("#sweep-speeds").inner_text())
    assert found is not None
    assert float(found[2]) > 1.5  # a step takes the same time whatever it drafts here
    assert "τ reaches" in page.locator("#sweep-lengths").inner_text()
    expect(page.locator("#sweep-go")).to_be_enabled()


def test_a_sweep_can_be_stopped(page: Page, chain_app: ChainApp) -> None:
    chain_app.pace = 0.1
    open_sweep(page, chain_app)
    page.locator("#sweep-go").click()
    wait_until(lambda: len(chain_app.engine.generations) >= 3)
    page.locator("#sweep-stop").click()
    expect(page.locator("#sweep-progress")).to_contain_text("Stopped", timeout=30_000)
    expect(page.locator("#sweep-go")).to_be_enabled()
    steps = chain_app.engine.steps_done
    page.wait_for_timeout(600)
    assert chain_app.engine.steps_done == steps


def test_a_sweep_without_a_prompt_says_what_to_do(page: Page, chain_app: ChainApp) -> None:
    open_sweep(page, chain_app)
    page.locator("#compare-prompt textarea").fill("")
    page.locator("#sweep-go").click()
    expect(page.locator("#sweep-progress")).to_contain_text("Write a prompt first")
    assert chain_app.engine.generations == []
