"""What the Backend tab says of a lane's server and of its pair, as text and HTML; foreign text is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape

from backend.catalog import Pair, PublishedFigure, find_published
from backend.lanes import Lane, hide_secrets
from backend.server_load import ServerLoad
from backend.sglang.command import show_command
from backend.sglang.launch_spec import LaunchSpec
from backend.sglang.state import RUNNING, ServerState, Stage
from ui.numbers import DASH, format_length, format_ratio, format_speed

NOT_FLAGS = ("launch_command", "eaglelens", "version", "model_path", "served_model_name")
LOG_LINES = 60


@dataclass(frozen=True)
class LaneReport:
    """All that is known of one lane; `server` and `spec` only where this app launched it."""

    label: str
    lane: Lane | None = None
    load: ServerLoad = field(default_factory=ServerLoad)
    server: ServerState | None = None
    spec: LaunchSpec | None = None
    problem: str = ""


def render_report(report: LaneReport) -> str:
    """The card of a lane."""
    lane, load, server = report.lane, report.load, report.server
    rows = [
        ("Address", lane.base_url if lane else server.base_url if server else None),
        ("Model", lane.model if lane else report.spec.target if report.spec else None),
        ("SGLang", _describe_version(report)),
        ("Speculation", _describe_speculation(lane)),
        ("Requests", f"{_count(load.running)} running, {_count(load.queued)} queued"),
        ("τ, server-wide", format_length(load.acceptance_length)),
        ("Tokens/s, server-wide", format_speed(load.throughput)),
        ("Process", _describe_process(server)),
        ("Log", str(server.log) if server and server.log else None),
    ]
    state, tone = _describe_state(report)
    trouble = " ".join(part for part in (server.reason, server.remedy) if part) if server else report.problem
    return (
        '<section class="card backend-lane"><header class="card-head">'
        f'<h3>{escape(report.label)}</h3><span class="chip" data-tone="{tone}"><b>{escape(state)}</b></span></header>'
        + (f'<p class="trouble">{escape(trouble)}</p>' if trouble else "")
        + f"<dl>{''.join(_row(name, value) for name, value in rows if value)}</dl>{_render_flags(lane)}</section>"
    )


def show_launch(report: LaneReport) -> str:
    """The command that makes this server, to be copied into a shell; empty where it is not known. Keys are left out."""
    if report.spec is not None:
        text = show_command(report.spec)
    else:
        told = report.lane.facts.get("launch_command") if report.lane else None
        text = str(told or "").strip()
        text = f"python -m sglang.launch_server {text}" if text.startswith("--") else text
    return str(hide_secrets(text))


def show_log(report: LaneReport) -> str:
    """The end of the server's log; empty where this app did not launch it."""
    lines = report.server.log_tail[-LOG_LINES:] if report.server else ()
    return "\n".join(str(hide_secrets(line)) for line in lines)


def render_published(pair: Pair | None) -> str:
    """What others measured with this pair, and where that stands; empty where nothing is known of it."""
    figures = find_published(pair) if pair is not None else ()
    if not figures:
        return ""
    rows = "".join(_published_row(figure) for figure in figures)
    heads = ("Benchmark", "Steps-topk-tokens", "Batch", "Engine, hardware", "Speedup", "Tokens per step", "Source")
    return (
        '<section class="card backend-published"><header class="card-head"><h3>Published by others, not measured here'
        f"</h3></header><div><table><thead><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div></section>"
    )


def _published_row(figure: PublishedFigure) -> str:
    cells = (
        figure.benchmark,
        figure.configuration or DASH,
        _count(figure.batch_size),
        ", ".join(part for part in (figure.engine, figure.hardware) if part),
        format_ratio(figure.speedup),
        format_length(figure.acceptance_length),
        f"{figure.source}, read {figure.read}",
    )
    return f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"


def _describe_state(report: LaneReport) -> tuple[str, str]:
    if report.server is not None:
        stage = report.server.stage
        since = datetime.fromtimestamp(report.server.since, UTC)
        tone = "good" if stage == Stage.READY else "bad" if stage == Stage.FAILED else "plain"
        return f"{stage} since {since:%H:%M:%S} UTC", tone
    if report.lane is not None:
        return "ready", "good"
    return ("does not answer", "bad") if report.problem else ("not there", "plain")


def _describe_version(report: LaneReport) -> str | None:
    if report.lane is not None:
        return report.lane.version or "does not tell its version"
    return report.spec.version if report.spec else None


def _describe_speculation(lane: Lane | None) -> str | None:
    if lane is None:
        return None
    if not lane.tells_speculation:
        return "not told"
    if not lane.is_speculative:
        return "none"
    tokens = lane.num_draft_tokens if lane.num_draft_tokens is not None else DASH
    return f"{lane.algorithm}, {lane.num_steps} steps, topk {lane.topk}, {tokens} draft tokens"


def _describe_process(server: ServerState | None) -> str | None:
    if server is None or server.stage not in RUNNING or server.pid is None:
        return None
    return f"{server.pid}, start number {server.starts}"


def _render_flags(lane: Lane | None) -> str:
    facts: Sequence[tuple[str, object]] = tuple(lane.facts.items()) if lane else ()
    rows = "".join(_row(name, str(value)) for name, value in facts if name not in NOT_FLAGS)
    return f"<details><summary>Flags, as the server tells them</summary><dl>{rows}</dl></details>" if rows else ""


def _row(name: str, value: str) -> str:
    return f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>"


def _count(number: int | None) -> str:
    return DASH if number is None else str(number)
