"""The Replay tab: opens a recording, plays it, explains its steps, and exports it as one HTML page."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any
from uuid import uuid4

import gradio as gr

from backend.errors import RecordingError
from backend.recording import Recording, load_recording
from ui.compare_verdict import Report, VerdictCard
from ui.html_export import export_html
from ui.markdown import escape_markup
from ui.numbers import Numbers
from ui.replay_player import ReplayPlayer
from ui.replay_view import Replay, show_recording
from ui.token_stream import EMPTY_VIEW, TokenStream

PANELS = ("replay-left", "replay-right")

Updates = dict[Any, Any]


@dataclass(frozen=True)
class ReplayTab:
    """The components of the tab."""

    examples: gr.Dropdown
    upload: gr.UploadButton
    export: gr.DownloadButton
    notice: gr.Markdown
    numbers: Numbers
    player: ReplayPlayer
    left: TokenStream
    right: TokenStream
    right_column: gr.Column
    report: VerdictCard

    def shown(self) -> list[Any]:
        """Everything that opening a recording changes."""
        return [
            self.export,
            self.notice,
            self.numbers,
            self.player,
            self.left,
            self.right,
            self.right_column,
            self.report,
        ]


def build_replay_tab(page: gr.Blocks) -> None:
    """Lay out the tab inside the current context and wire its events."""
    examples = list_examples()
    tab = _lay_out(examples)
    events = ReplayEvents(tab, examples)
    hidden: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "concurrency_limit": None}
    tab.upload.upload(events.open_upload, tab.upload, [*tab.shown(), tab.examples], **hidden)
    gr.on([page.load, tab.examples.input], events.open_example, tab.examples, [*tab.shown(), tab.examples], **hidden)


def list_examples() -> dict[str, Path]:
    """The recordings that ship with the app, by title, in the order in which they were made."""
    folder = Path(str(files("assets").joinpath("recordings")))
    loaded = [(load_recording(path), path) for path in folder.glob("*.json")]
    return {recording.title: path for recording, path in sorted(loaded, key=lambda pair: pair[0].created)}


def _lay_out(examples: Mapping[str, Path]) -> ReplayTab:
    with gr.Row(elem_classes="replay-open"):
        choices = gr.Dropdown(
            list(examples),
            value=next(iter(examples), None),
            label="Recordings of the embedded pair",
            elem_id="replay-examples",
            scale=4,
            min_width=280,
        )
        upload = gr.UploadButton("Open a recording", elem_id="replay-upload", file_count="single", scale=1)
        export = gr.DownloadButton("Export as HTML", elem_id="replay-export", interactive=False, scale=1)
    notice = gr.Markdown(visible=False, elem_id="replay-notice", elem_classes="banner")
    numbers = Numbers(elem_id="replay-numbers")
    player = ReplayPlayer(elem_id="replay-player")
    with gr.Row(elem_classes="lens-panels"):
        with gr.Column(min_width=320):
            left = TokenStream(EMPTY_VIEW, whole=_forget, elem_id=PANELS[0])
        with gr.Column(min_width=320) as right_column:
            right = TokenStream(EMPTY_VIEW, whole=_forget, elem_id=PANELS[1])
    report = VerdictCard(elem_id="replay-verdict")
    return ReplayTab(choices, upload, export, notice, numbers, player, left, right, right_column, report)


def _forget(_run: str) -> None:
    """Every update of this tab is complete, so its views never ask again."""


class ReplayEvents:
    """What happens in the tab, for all visitors."""

    def __init__(self, tab: ReplayTab, examples: Mapping[str, Path]) -> None:
        self._tab = tab
        self._examples = examples
        self._folder = tempfile.TemporaryDirectory(prefix="eaglelens-")  # goes with the app

    def open_example(self, title: str | None) -> Updates:
        """Show a shipped recording."""
        path = self._examples.get(title or "")
        return self._open(path, Path(self._folder.name)) if path else {}

    def open_upload(self, path: str) -> Updates:
        """Show a file of the visitor's own; where it cannot be shown, what was shown stays."""
        return {self._tab.examples: None} | self._open(Path(path), Path(tempfile.mkdtemp(dir=self._folder.name)))

    def _open(self, path: Path, folder: Path) -> Updates:
        """Show the recording at `path`; its exported page goes to `folder`."""
        tab = self._tab
        try:
            recording = load_recording(path)
            replay = show_recording(recording, uuid4().hex, PANELS)
        except RecordingError as error:
            return {tab.notice: gr.Markdown(escape_markup(str(error)), visible=True), tab.examples: gr.skip()}
        return {
            tab.notice: gr.Markdown(visible=False),
            tab.export: gr.DownloadButton(
                value=_write_export(recording, folder / f"{path.stem}.html"), interactive=True
            ),
            **_show(tab, replay),
        }


def _write_export(recording: Recording, path: Path) -> Path:
    """Write the page unless it is there already: every visitor opens the same examples."""
    if not path.exists():
        path.write_text(export_html(recording), encoding="utf-8")
    return path


def _show(tab: ReplayTab, replay: Replay) -> Updates:
    views = [panel.view for panel in replay.panels]
    return {
        tab.numbers: replay.numbers,
        tab.player: replay.player,
        tab.left: views[0],
        tab.right: views[1] if len(views) > 1 else EMPTY_VIEW,
        tab.right_column: gr.Column(visible=True if len(views) > 1 else "hidden"),
        tab.report: replay.report if replay.report != Report() else None,
    }
