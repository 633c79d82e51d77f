"""Ports of this machine."""

from __future__ import annotations

import socket

TRIED = 100


class NoFreePortError(OSError):
    """Its message says which ports were tried."""


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen at `host` and `port` now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def find_free_port(host: str, wanted: int) -> int:
    """`wanted`, or the next port after it that is free."""
    for port in range(wanted, min(wanted + TRIED, 65536)):
        if is_free(host, port):
            return port
    raise NoFreePortError(
        f"None of the ports {wanted} to {wanted + TRIED - 1} can be opened on {host}. Choose another with --port."
    )
