"""Who is at the other end of a page: the person at this machine, or somebody elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

import gradio as gr

# A tunnel or a proxy says by these that the request is not its own.
FORWARDED = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")


def is_local(request: gr.Request) -> bool:
    """Whether the page was opened on this machine, at an address that exists only there.

    A share link has a public host name, another machine a foreign address, a proxy its headers: all three are
    refused. A proxy on this machine that hides what it does cannot be told.
    """
    client = request.client
    return is_local_request(dict(request.headers), client.host if client else "")


def is_local_request(headers: Mapping[str, str], client: str) -> bool:
    """The same for raw headers (lower-case names) and the address of the other end."""
    if any(name in headers for name in FORWARDED):
        return False
    return _is_loopback(client) and _is_loopback(urlsplit(f"//{headers.get('host', '')}").hostname or "")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
