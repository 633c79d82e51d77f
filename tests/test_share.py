"""The share link: asked for beside the app, and honest where it cannot be had."""

from __future__ import annotations

import threading
import time

import pytest

from ui import share
from ui.share import ShareLink


def wait_for_word(said: list[str]) -> str:
    deadline = time.monotonic() + 10
    while not said:
        assert time.monotonic() < deadline, "nothing was said"
        time.sleep(0.02)
    return said[0]


def test_a_refused_tunnel_is_told_and_nothing_else_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> str:
        raise RuntimeError("Could not get share link")

    monkeypatch.setattr(share, "setup_tunnel", refuse)
    said: list[str] = []
    link = ShareLink(said.append)
    link.ask("127.0.0.1", 7860, "token")
    assert "Could not get share link" in wait_for_word(said)
    assert "locally" in link.state().problem
    assert link.state().url is None


def test_a_tunnel_that_does_not_answer_is_told_within_its_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()

    def wait(*_: object) -> str:
        answer.wait(10)
        return "https://late.example.org"

    monkeypatch.setattr(share, "setup_tunnel", wait)
    said: list[str] = []
    link = ShareLink(said.append)
    begun = time.monotonic()
    link.ask("127.0.0.1", 7860, "token", patience=0.2)
    assert time.monotonic() - begun < 0.2
    assert "no answer" in wait_for_word(said)
    assert link.state().problem
    answer.set()
    while link.state().url is None:
        time.sleep(0.02)
    assert link.state().problem == ""


def test_a_link_that_is_there_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share, "setup_tunnel", lambda *_: "https://abc.example.org")
    said: list[str] = []
    link = ShareLink(said.append)
    link.ask("127.0.0.1", 7860, "token")
    assert "https://abc.example.org" in wait_for_word(said)
    assert link.state().url == "https://abc.example.org"
