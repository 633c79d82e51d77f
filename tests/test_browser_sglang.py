"""The whole app on a real SGLang that it launches: chat, exact labels, a killed server, restart, nothing left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Page, expect

import app
from backend.ports import find_free_port
from tests.browser import ask, browser, open_app, page, wait_for_reply, wait_until
from tests.sglang_cpu.chain_models import ChainModels
from tests.sglang_cpu.server import COMMON, environment_variables

pytestmark = [pytest.mark.browser, pytest.mark.heavy]

ROOT = Path(app.__file__).parent
ATTEMPTS = 6  # replies, of which one must be exact
READY_WITHIN = 500.0  # seconds for both servers, one after the other
REPLY_WITHIN = 240.0
MOMENT = 90_000  # ms for the page to show what is so already, on a loaded machine
INTEL = ("--prefill-attention-backend", "intel_amx", "--decode-attention-backend", "intel_amx")


@dataclass(frozen=True)
class RunningApp:
    """The app as a process of its own; `output` is the file that holds what it said."""

    process: subprocess.Popen[bytes]
    url: str
    output: Path

    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def descendants(self) -> list[psutil.Process]:
        children: list[psutil.Process] = psutil.Process(self.process.pid).children(recursive=True)
        return children


@contextmanager
def run_app(python: Path, chain: ChainModels, folder: Path) -> Iterator[RunningApp]:
    """The command of the README, with the flags that make SGLang serve on this CPU."""
    port = find_free_port("127.0.0.1", 18100)
    command = [
        *(sys.executable, "app.py", "--no-browser", "--port", str(port)),
        *("--target", str(chain.target), "--draft", str(chain.draft), "--steps", "3"),
        *("--sglang-python", str(python), "--", *COMMON, *INTEL),
    ]
    output = folder / "app.txt"
    environment = {**environment_variables(), "XDG_STATE_HOME": str(folder / "state")}
    with output.open("wb") as file:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield RunningApp(process, f"http://127.0.0.1:{port}/", output)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def list_servers(chain: ChainModels) -> list[psutil.Process]:
    """Every process that serves this very target."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "sglang.launch_server" in words and str(chain.target) in words:
            found.append(process)
    return found


def open_tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=name).click()


def chat_until_exact(page: Page) -> None:
    """Ask until a reply is exact: a busy machine merges chunks now and then, whose labels are rightly uncertain."""
    badge = page.locator("#chat-tokens .badge")
    for _ in range(ATTEMPTS):
        ask(page, "w9 w10")
        expect(page.locator("#chat-stop")).to_be_enabled(timeout=MOMENT)
        wait_for_reply(page, REPLY_WITHIN)
        if badge.inner_text() == "labels exact":
            return
        assert badge.get_attribute("data-state") == "partial", badge.inner_text()
    pytest.fail(f"no reply of {ATTEMPTS} was exact: {badge.inner_text()}")


@pytest.mark.timeout(2400)
def test_a_launched_pair_chats_exactly_survives_a_kill_and_leaves_nothing(
    page: Page, sglang_python: Path, chain_models: ChainModels, tmp_path: Path
) -> None:
    with run_app(sglang_python, chain_models, tmp_path) as running:
        wait_until(lambda: running.url.rstrip("/") in running.said(), 120)
        page.goto(running.url)
        expect(page.locator("#lens-banner")).to_contain_text("EAGLE-3", timeout=MOMENT)
        wait_until(lambda: running.said().rstrip().endswith("Engine: Ready"), READY_WITHIN)

        open_app(page, running.url)
        expect(page.locator(".chip b", has_text="ready")).to_have_count(2, timeout=MOMENT)
        expect(page.locator("#lens-banner")).not_to_be_visible()
        chat_until_exact(page)

        open_tab(page, "Backend")
        card = page.locator("#backend-eagle")
        expect(card).to_contain_text("ready since", timeout=MOMENT)
        expect(card).to_contain_text("EAGLE3, 3 steps, topk 1, 4 draft tokens")
        expect(page.locator("#backend-eagle-command")).to_contain_text("--speculative-algorithm EAGLE3")
        expect(page.locator("#backend-eagle-log textarea")).to_have_value(re.compile("fired up"))
        pid = int(re.findall(r"(\d+), start number 1", card.inner_text())[0])

        open_tab(page, "Chat")
        ask(page, "w20 w21")
        expect(page.locator('#chat-tokens .token[data-index="0"]')).to_have_text(re.compile("w22"), timeout=MOMENT)
        page.locator('#chat-tokens .token[data-index="12"]').wait_for(timeout=MOMENT)
        os.kill(pid, signal.SIGKILL)
        expect(page.locator("#chat-notice")).to_contain_text("broke off", timeout=MOMENT)
        assert page.locator("#chat-tokens .tokens .token").count() > 12
        expect(page.locator("#lens-banner")).to_contain_text("killed", timeout=MOMENT)

        open_tab(page, "Backend")
        expect(card).to_contain_text("failed since", timeout=MOMENT)
        page.locator("#backend-eagle-restart").click()
        expect(card).to_contain_text("start number 2", timeout=MOMENT)
        expect(card).to_contain_text("ready since", timeout=READY_WITHIN * 1000)
        expect(page.locator("#lens-banner")).not_to_be_visible(timeout=MOMENT)
        open_tab(page, "Chat")
        chat_until_exact(page)

        children = running.descendants()
        assert len(list_servers(chain_models)) >= 2
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(90) == 0
        _, alive = psutil.wait_procs(children, timeout=20)
        assert not alive
        assert not list_servers(chain_models)


@pytest.mark.timeout(900)
def test_an_app_that_is_killed_takes_its_ready_and_its_starting_server_with_it(
    sglang_python: Path, chain_models: ChainModels, tmp_path: Path
) -> None:
    with run_app(sglang_python, chain_models, tmp_path) as running:
        wait_until(lambda: "Baseline: starting" in running.said(), READY_WITHIN)
        wait_until(lambda: len(list_servers(chain_models)) >= 2, 60)
        children = running.descendants()
        running.process.kill()
        running.process.wait(30)
        _, alive = psutil.wait_procs(children, timeout=60)
        assert not alive
        assert not list_servers(chain_models)
