"""A recording as one HTML page that plays without a server and without a network."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from string import Template

from backend.recording import Recording
from ui.launch import list_style_sheets
from ui.replay_player import read_player_script
from ui.replay_view import Replay, show_recording
from ui.resources import read_resource
from ui.token_stream import encode_update

PANELS = ("left", "right")
# Inside a script element these would end it, or mean something to an older parser.
UNSAFE = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def export_html(recording: Recording) -> str:
    """The whole page. Model text is data in it, never markup. Raises RecordingError for one too long for a page."""
    replay = show_recording(recording, "recording", PANELS)
    style = "\n".join(Path(sheet).read_text(encoding="utf-8") for sheet in list_style_sheets())
    script = _join_scripts()
    return Template(read_resource("html/export.html")).substitute(
        title=escape(recording.title or "EagleLens replay"),
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        data=embed_json(_list_components(replay)),
        numbers=read_resource("html/numbers.html"),
        player=read_resource("html/replay.html"),
        token_stream=read_resource("html/token_stream.html"),
        verdict=read_resource("html/compare_verdict.html"),
    )


def embed_json(value: object) -> str:
    """`value` as JSON that no HTML parser can take for markup, whatever text is in it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.translate(UNSAFE)


def _join_scripts() -> str:
    return Template(read_resource("js/export.js")).substitute(
        numbers=read_resource("js/numbers.js"),
        token_stream=read_resource("js/token_stream.js"),
        player=read_player_script(),
        verdict=read_resource("js/compare_verdict.js"),
    )


def _list_components(replay: Replay) -> Sequence[tuple[str, str, str | None]]:
    """Element id, script and value of each component, in the order in which they start."""
    views: list[str | None] = [encode_update(panel.view, None) for panel in replay.panels]
    left, right = (*views, None)[:2]
    return (
        ("numbers", "numbers", json.dumps([asdict(number) for number in replay.numbers])),
        ("left", "tokenStream", left),
        ("right", "tokenStream", right),
        ("player", "player", replay.player),
        ("verdict", "verdict", json.dumps(asdict(replay.report), ensure_ascii=False)),
    )


def _hash(text: str) -> str:
    """A Content-Security-Policy source for an inline script or style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
