"""The Backend tab in a real browser: there for the person at the machine, and for nobody who comes through a link."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from backend.catalog import make_pair
from backend.hub import Hub
from backend.kept_baselines import KeptBaselines
from backend.sglang.fit import Arrangement
from backend.sglang.launch_plan import LaunchPlan
from backend.sglang.launch_spec import LaunchSpec
from backend.sglang.pair_launch import PairLaunch
from backend.sglang.supervisor import Patience
from tests.browser import ChainApp, ask, browser, chain_app, open_app, page, serve, wait_for_reply
from tests.sglang_standin import UP
from ui.engines import Engines
from ui.page import build_page
from ui.share import ShareLink

pytestmark = pytest.mark.browser


def make_launch(eagle: LaunchSpec, baseline: LaunchSpec, folder: Path) -> PairLaunch:
    """A pair whose servers take turns; its models are a file each."""
    for name in ("target", "draft"):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text("{}")
        (folder / name / "model.safetensors").write_bytes(b"0")
    hub = Hub()
    target, draft = (hub.plan(str(folder / name)) for name in ("target", "draft"))
    pair = make_pair(str(folder / "target"), str(folder / "draft"), 3)
    eagle = replace(eagle, label="EAGLE-3")
    plan = LaunchPlan(pair, target, draft, eagle, baseline, Arrangement.TAKING_TURNS, Patience(stop=1.0))
    return PairLaunch(plan, hub, folder / "logs")


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


@pytest.mark.heavy
@pytest.mark.timeout(420)
def test_a_baseline_without_room_is_measured_in_turn_and_compared_with_under_its_date(
    page: Page, standin: Callable[[str], LaunchSpec], tmp_path: Path
) -> None:
    launch = make_launch(standin(f"{UP}; speak EAGLE"), standin(f"{UP}; speak BASELINE"), tmp_path)
    engines = Engines(lambda: launch.stage, kept=KeptBaselines(tmp_path / "baselines"))
    launch.start()
    try:
        with serve(build_page(engines, ShareLink(print).state, launch)) as url:
            open_app(page, url)
            page.get_by_role("tab", name="Compare").click()
            page.locator("#compare-prompt textarea").fill("Count to ten.")
            page.locator("#compare-go").click()
            expect(page.locator("#compare-notice")).to_contain_text("the Backend tab measures one", timeout=20_000)

            page.get_by_role("tab", name="Backend").click()
            for box in page.locator("#backend-presets input").all():
                box.uncheck()
            page.locator("#backend-own-prompt textarea").fill("Count to ten.")
            page.locator("#backend-measure-go").click()
            kept = page.locator("#backend-kept")
            expect(kept).to_contain_text("1 prompt measured and kept.", timeout=90_000)
            expect(kept.locator("tbody tr")).to_have_count(1)
            expect(kept).to_contain_text("UTC")
            expect(page.locator("#backend-eagle")).to_contain_text("start number 2", timeout=60_000)

            page.get_by_role("tab", name="Compare").click()
            page.locator(".chip b", has_text="ready").first.wait_for(timeout=60_000)
            page.locator("#compare-go").click()
            verdict = page.locator("#compare-verdict")
            expect(verdict).to_contain_text("one baseline run measured on", timeout=60_000)
            expect(verdict).to_contain_text("EAGLE-3 decodes at")
            expect(page.locator("#compare-right")).to_contain_text("Baseline of ")
    finally:
        launch.stop()


def test_a_visitor_through_a_link_gets_nothing_of_it(page: Page, chain_app: ChainApp) -> None:
    page.set_extra_http_headers({"X-Forwarded-For": "203.0.113.7"})
    open_app(page, chain_app.url)
    page.wait_for_timeout(1000)
    expect(page.get_by_role("tab", name="Chat")).to_be_visible()
    expect(page.get_by_role("tab", name="Backend")).to_have_count(0)
    assert chain_app.server.eagle.url not in page.content()
