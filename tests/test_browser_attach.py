"""The page in a real browser, attached to servers of others: with key and certificate, of an old version, routed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from backend.embedded_process import EngineStage
from tests.attached import make_certificate, write_template
from tests.browser import ask, browser, open_app, page, serve, wait_for_reply
from tests.chunk_server import ChunkServer, Script
from ui.engines import Engines
from ui.page import build_page
from ui.share import ShareLink

pytestmark = [pytest.mark.browser, pytest.mark.heavy]

SCRIPT = Script.from_steps([0, 3, 0, 3], 3, cut=1, interval=0.02)
CAPTURES = Path(__file__).parent / "captures"


@contextmanager
def attached(
    eagle: ChunkServer, baseline: ChunkServer | None = None, key: str | None = None, ca_file: Path | None = None
) -> Iterator[str]:
    """The app attached to servers that run; its address."""
    stage = EngineStage("ready", "Attached", 1.0, eagle.url, baseline.url if baseline else None)
    engines = Engines(lambda: stage, key, str(ca_file) if ca_file else None)
    with serve(build_page(engines, ShareLink(print).state)) as url:
        yield url


def test_a_chat_over_tls_with_a_key_is_exact_and_the_page_holds_no_key(page: Page, tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    told = {"launch_command": "python -m sglang.launch_server --api-key s3cret"}
    with (
        ChunkServer(SCRIPT, tls=certificate.server, api_key="s3cret", facts=told) as server,
        attached(server, key="s3cret", ca_file=certificate.bundle) as url,
    ):
        open_app(page, url)
        ask(page, "Hello")
        wait_for_reply(page)
        expect(page.locator("#chat-tokens .badge")).to_have_text("labels exact")
        page.get_by_role("tab", name="Backend").click()
        expect(page.locator("#backend-eagle-command")).to_contain_text("--api-key", timeout=20_000)
        assert "s3cret" not in page.content()


def test_a_wrong_key_is_said_above_everything(page: Page) -> None:
    with ChunkServer(SCRIPT, api_key="s3cret") as server, attached(server, key="wr0ng") as url:
        page.goto(url)
        expect(page.locator("#lens-banner")).to_contain_text(
            "refused the key (401). Give the API key that it was started with.", timeout=30_000
        )
        assert "wr0ng" not in page.content()


def test_the_wire_of_0_5_6_is_coloured_exactly_in_the_chat(page: Page, tmp_path: Path) -> None:
    recorded = (CAPTURES / "written_0_5_6.generate.sse").read_bytes()
    facts = {"model_path": str(write_template(tmp_path / "model"))}
    with ChunkServer(SCRIPT, version="0.5.6", recorded=recorded, facts=facts) as server, attached(server) as url:
        open_app(page, url)
        expect(page.locator("#lens-banner")).to_contain_text("older /generate interface")
        ask(page, "Hello")
        wait_for_reply(page)
        expect(page.locator("#chat-tokens .badge")).to_have_text("labels exact")
        expect(page.locator("#chat-tokens .tokens .token")).to_have_count(14)


def test_behind_a_router_that_drops_counters_and_ids_the_page_says_what_it_cannot_know(page: Page) -> None:
    hidden = frozenset({"/server_info", "/get_server_info"})
    script = replace(SCRIPT, spec=None, with_ids=False)
    with ChunkServer(script, missing=hidden) as server, attached(server) as url:
        open_app(page, url)
        expect(page.locator("#lens-banner")).to_contain_text("does not tell whether it speculates")
        ask(page, "Hello")
        wait_for_reply(page)
        expect(page.locator("#chat-tokens .badge")).to_have_text("9 labels uncertain")


def test_lanes_that_do_not_match_are_said(page: Page) -> None:
    other = {"dtype": "float16", "model_path": "other"}
    with ChunkServer(SCRIPT) as eagle, ChunkServer(SCRIPT, facts=other) as second, attached(eagle, second) as url:
        open_app(page, url)
        banner = page.locator("#lens-banner")
        expect(banner).to_contain_text("The second server speculates too: it is no baseline")
        expect(banner).to_contain_text("differ in dtype (EAGLE-3: bfloat16, Baseline: float16)")
        expect(banner).to_contain_text("differ in model_path (EAGLE-3: chunks, Baseline: other)")
