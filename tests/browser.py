"""A real browser on the real page, for the tests marked `browser`.

Without Chromium these tests are skipped; where EAGLELENS_REQUIRE_BROWSER=1 is set the lack is a failure.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import gradio as gr
import pytest
from playwright.sync_api import Browser, Dialog, Page, sync_playwright

from backend.embedded.server import EmbeddedServer, bind_port
from backend.embedded_process import EngineStage
from backend.ports import find_free_port
from tests.closed_form_engine import ClosedFormEngine
from ui.engines import Engines
from ui.launch import serve_page
from ui.page import build_page
from ui.share import ShareLink

CHROMIUM_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")
HOST = "127.0.0.1"


def find_chromium() -> str | None:
    """The browser to drive: EAGLELENS_CHROMIUM, or one on the path."""
    named = os.environ.get("EAGLELENS_CHROMIUM")
    return named or next((path for name in CHROMIUM_NAMES if (path := shutil.which(name))), None)


# Not for the whole session: playwright's event loop must be gone before the next asynchronous test.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium for the tests of a file."""
    path = find_chromium()
    if path is None:
        message = "No Chromium found: install it, or set EAGLELENS_CHROMIUM to its path."
        if os.environ.get("EAGLELENS_REQUIRE_BROWSER") == "1":
            pytest.fail(message)
        pytest.skip(message)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A fresh profile; an error of the page's own scripts, or a dialog, fails the test."""
    context = browser.new_context(viewport={"width": 1240, "height": 900})
    tab = context.new_page()
    faults: list[str] = []

    def refuse(dialog: Dialog) -> None:
        faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    tab.on("pageerror", lambda error: faults.append(str(error)))
    tab.on("dialog", refuse)
    yield tab
    context.close()
    assert not faults


@dataclass
class ChainApp:
    """The app on two lanes whose every token is known. `pace` is the engine's seconds per step; change it at will."""

    url: str
    server: EmbeddedServer
    engine: ClosedFormEngine
    pace: float

    def restart(self, eagle_url: str, baseline_url: str) -> None:
        """Serve again at the addresses of the stopped server."""
        self.server = EmbeddedServer(self.engine, *(bind_port(HOST, port_of(url)) for url in (eagle_url, baseline_url)))
        self.server.start()


def port_of(url: str) -> int:
    """The port of an address."""
    return int(url.rpartition(":")[2])


@contextmanager
def serve(blocks: gr.Blocks) -> Iterator[str]:
    """Serve a page as the app does; its address."""
    said: list[str] = []
    port = find_free_port(HOST, 17800)
    try:
        yield serve_page(blocks, ShareLink(said.append), HOST, port, public=False, browser=False, say=said.append)
    finally:
        blocks.close(verbose=False)


@pytest.fixture
def chain_app() -> Iterator[ChainApp]:
    engine = ClosedFormEngine()
    server = EmbeddedServer(engine, bind_port(HOST, 0), bind_port(HOST, 0))
    server.start()
    stage = EngineStage("ready", "Attached", 1.0, server.eagle.url, server.baseline.url)
    app = ChainApp("", server, engine, pace=0.01)
    engine.before_step = lambda: time.sleep(app.pace)
    with serve(build_page(Engines(lambda: stage), ShareLink(print).state)) as url:
        app.url = url
        yield app
    app.server.stop()


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait for `condition`; it is looked at ten times a second."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.1)


def open_app(page: Page, url: str) -> None:
    """Go to the app and wait until its lanes are there."""
    page.goto(url)
    page.locator(".chip b", has_text="ready").first.wait_for(timeout=60_000)
    page.locator("#chat-tokens .tokens").wait_for()


def ask(page: Page, prompt: str) -> None:
    """Type a message and send it."""
    page.locator("#chat-prompt textarea").fill(prompt)
    page.locator("#chat-send").click()


def wait_for_reply(page: Page, seconds: float = 40.0) -> None:
    """Wait until the reply is complete: the token view says so, and a new message can be sent."""
    page.locator('#chat-tokens [data-done="true"]:not([data-total="0"])').wait_for(timeout=seconds * 1000)
    page.locator("#chat-send:enabled").wait_for(timeout=seconds * 1000)
