"""Who may see the Backend tab: the person at this machine, nobody behind a link, a proxy or another machine."""

from __future__ import annotations

import pytest

from ui.visitor import FORWARDED, is_local_request


@pytest.mark.parametrize("host", ["127.0.0.1:7860", "localhost:7860", "[::1]:7860", "127.0.0.1"])
def test_a_loopback_address_from_this_machine_is_local(host: str) -> None:
    assert is_local_request({"host": host}, "127.0.0.1")


@pytest.mark.parametrize(
    ("host", "client"),
    [
        ("0123456789abcdef.gradio.live", "127.0.0.1"),  # a share link's tunnel ends on this machine
        ("192.168.1.5:7860", "192.168.1.7"),
        ("192.168.1.5:7860", "127.0.0.1"),
        ("localhost:7860", "192.168.1.7"),
        ("localhost.example.org", "127.0.0.1"),
        ("", "127.0.0.1"),
        ("localhost:7860", ""),
    ],
)
def test_a_public_name_or_another_machine_is_not_local(host: str, client: str) -> None:
    assert not is_local_request({"host": host}, client)


@pytest.mark.parametrize("header", FORWARDED)
def test_a_forwarded_request_is_not_local(header: str) -> None:
    assert not is_local_request({"host": "localhost:7860", header: "127.0.0.1"}, "127.0.0.1")
