"""Long replies in a real browser, on the whole way from the wire to the page: complete, in time and smooth."""

from __future__ import annotations

import time
from itertools import pairwise
from statistics import median
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from backend.embedded_process import EngineStage
from tests.browser import ask, browser, open_app, page, serve
from tests.chunk_server import ChunkServer, Script
from ui.engines import Engines
from ui.page import build_page
from ui.share import ShareLink

pytestmark = [pytest.mark.browser, pytest.mark.heavy]

RATE = 300.0  # tokens per second
MOST_LAG = 1.0  # seconds between the last chunk on the wire and the complete page
STEP = 4

# Observers, since looking at the page again and again would itself slow it down.
WATCH = """(panel) => {
  const notes = ((window.seen ??= {})[panel] = { times: [], totals: [] });
  new MutationObserver((changes) => {
    const total = Number(changes.at(-1).target.dataset.total);
    if (total === (notes.totals.at(-1) ?? 0)) return;
    notes.times.push(Date.now() / 1000);
    notes.totals.push(total);
  }).observe(document.getElementById(panel), { subtree: true, attributeFilter: ['data-total'] });
}"""

WATCH_CHARTS = """() => {
  window.plots = [...document.querySelectorAll('#compare-speeds .plot, #compare-counts .plot')];
  window.lowest = Infinity;
  const observer = new ResizeObserver((entries) => {
    window.lowest = Math.min(window.lowest, ...entries.map((entry) => entry.contentRect.height));
  });
  window.plots.forEach((plot) => observer.observe(plot));
}"""


def script_of(tokens: int) -> Script:
    """A prefill and full verify steps, `tokens` in all, at `RATE`."""
    return Script.from_steps([STEP - 1] * ((tokens - 1) // STEP), STEP - 1, interval=STEP / RATE)


def read_notes(page: Page, panel: str) -> dict[str, Any]:
    """When the page had how many tokens."""
    notes: dict[str, Any] = page.evaluate("(panel) => window.seen[panel]", panel)
    return notes


def find_pace(notes: dict[str, Any]) -> float:
    """Seconds between two updates of the page, in the middle."""
    times: list[float] = notes["times"]
    return median(later - earlier for earlier, later in pairwise(times))


def last_sent(server: ChunkServer) -> float:
    """Unix time of the last chunk with tokens."""
    return time.time() - time.monotonic() + server.sent_at[len(server.script.sizes) - 1]


def test_ten_thousand_tokens_of_a_chat_at_300_a_second_are_complete_and_in_time(
    page: Page, capsys: pytest.CaptureFixture[str]
) -> None:
    script = script_of(10_001)
    total = sum(script.sizes)
    with ChunkServer(script) as eagle:
        stage = EngineStage("ready", "Attached", 1.0, eagle.url, None)
        with serve(build_page(Engines(lambda: stage), ShareLink(print).state)) as url:
            open_app(page, url)
            page.evaluate(WATCH, "chat-tokens")
            ask(page, "Hello")
            page.locator(f'#chat-tokens [data-done="true"][data-total="{total}"]').wait_for(timeout=180_000)
            notes = read_notes(page, "chat-tokens")
            lag = notes["times"][notes["totals"].index(total)] - last_sent(eagle)
            with capsys.disabled():
                print(f"\n{total} tokens: lag {lag:.2f} s, an update each {find_pace(notes) * 1000:.0f} ms")
            assert page.locator("#chat-tokens .tokens .token").count() == total
            expect(page.locator("#chat-tokens .badge")).to_have_text("labels exact")
            assert lag < MOST_LAG


def test_four_thousand_tokens_of_each_lane_are_smooth_and_no_chart_is_lost(
    page: Page, capsys: pytest.CaptureFixture[str]
) -> None:
    script = script_of(4_001)
    total = sum(script.sizes)
    with ChunkServer(script) as eagle, ChunkServer(Script.plain(total, interval=1 / RATE), num_steps=0) as plain:
        stage = EngineStage("ready", "Attached", 1.0, eagle.url, plain.url)
        with serve(build_page(Engines(lambda: stage), ShareLink(print).state)) as url:
            page.goto(url)
            expect(page.locator(".chip b", has_text="ready")).to_have_count(2, timeout=60_000)
            page.get_by_role("tab", name="Compare").click()
            page.locator("#compare-speeds .main-svg").first.wait_for()
            page.locator("#compare-prompt textarea").fill("Hello")
            page.evaluate(WATCH, "compare-left")
            page.evaluate(WATCH, "compare-right")
            page.evaluate(WATCH_CHARTS)
            page.locator("#compare-go").click()
            # The scripted warm-ups are as long as the run.
            for panel in ("compare-left", "compare-right"):
                page.locator(f'#{panel} [data-done="true"][data-total="{total}"]').wait_for(timeout=120_000)
            notes = [read_notes(page, panel) for panel in ("compare-left", "compare-right")]
            paces = [find_pace(one) for one in notes]
            with capsys.disabled():
                print(f"\n{total} tokens: an update each {paces[0] * 1000:.0f} and {paces[1] * 1000:.0f} ms")
            assert max(paces) <= 0.1
            assert page.evaluate("window.lowest") > 100
            assert page.evaluate("window.plots.every((plot) => plot.isConnected)")
