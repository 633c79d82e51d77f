"""Serving the page: port, link, theme and files in one place."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import gradio as gr

from backend.ports import find_free_port
from ui.resources import static_routes
from ui.share import ShareLink
from ui.theme import make_theme

BASE_SHEET = "eaglelens.css"  # the others build on it


def list_style_sheets() -> list[str | Path]:
    """The files of the look, the base first."""
    sheets = Path(str(files("assets").joinpath("css"))).glob("*.css")
    return [*sorted(sheets, key=lambda sheet: (sheet.name != BASE_SHEET, sheet.name))]


def serve_page(
    page: gr.Blocks,
    share: ShareLink,
    host: str,
    port: int,
    public: bool,
    browser: bool,
    say: Callable[[str], None],
) -> str:
    """Serve `page` in the background and return its address; `say` tells the person in the terminal.

    Raises `NoFreePortError` where neither `port` nor one after it can be opened.
    """
    free = find_free_port(host, port)
    if free != port:
        say(f"Port {port} is in use; taking {free}.")
    _, url, _ = page.launch(
        server_name=host,
        server_port=free,
        share=False,
        prevent_thread_lock=True,
        quiet=True,
        show_error=True,
        footer_links=[],
        run_history=False,
        theme=make_theme(),
        css_paths=list_style_sheets(),
        app_kwargs={"routes": static_routes()},
    )
    say(f"EagleLens is at {url}")
    if public:
        say("Asking for a share link.")
        share.ask(host, free, page.share_token)
    if browser:
        webbrowser.open(url)
    return url
