"""A target and a draft for the embedded engine, given as folders, files or repositories of the hub."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import assets
from backend.embedded.pair_check import Config, check_draft, check_pair, check_target, read_model_config
from backend.embedded_process import EngineStage
from backend.hub import DownloadPlan, Hub, Progress, Role

SHIPPED_DRAFT = Path(assets.__file__).parent / "draft"
SHIPPED_NAME = "The draft that ships with EagleLens"
MEBIBYTE = 1 << 20

Report = Callable[[EngineStage], None]


@dataclass(frozen=True)
class EmbeddedPair:
    """What is given, None where the built-in is meant. `target_file` is a GGUF file or a wheel in place of `target`."""

    target: DownloadPlan | None = None
    draft: DownloadPlan | None = None
    target_file: Path | None = None


def plan_embedded_pair(target: str | None, draft: str | None, hub: Hub) -> EmbeddedPair:
    """Look up both and refuse what the engine cannot run, with nothing but the two configs fetched.

    Raises HubError, OSError or ValueError, each with a sentence for a person.
    """
    file = None if target is None else Path(target).expanduser()
    is_file = file is not None and file.is_file()
    targets = None if target is None or is_file else hub.plan(target, Role.TARGET)
    drafts = None if draft is None else hub.plan(draft, Role.DRAFT)
    _check(targets, drafts, hub)
    return EmbeddedPair(targets, drafts, file if is_file else None)


def fetch_embedded_pair(pair: EmbeddedPair, hub: Hub, report: Report) -> list[str]:
    """Download what is missing; returns the engine's arguments for the pair. Raises HubError."""
    words = ["--target", str(pair.target_file)] if pair.target_file else []
    for option, plan in (("--target", pair.target), ("--draft", pair.draft)):
        if plan is not None:
            words += [option, str(_fetch(plan, hub, report))]
    return words


def _check(target: DownloadPlan | None, draft: DownloadPlan | None, hub: Hub) -> None:
    draft_name, draft_config = SHIPPED_NAME, None
    if draft is not None:
        draft_name, draft_config = draft.source, _read_config(draft, hub)
        check_draft(draft_name, draft_config)
    if target is not None:
        target_config = _read_config(target, hub)
        check_target(target.source, target_config)
        check_pair(target.source, target_config, draft_name, draft_config or read_model_config(SHIPPED_DRAFT))


def _read_config(plan: DownloadPlan, hub: Hub) -> Config:
    return hub.read_config(plan) if plan.folder is None else read_model_config(plan.folder)


def _fetch(plan: DownloadPlan, hub: Hub, report: Report) -> Path:
    def show(progress: Progress) -> None:
        done, total = progress.done_bytes, progress.total_bytes
        said = f"Downloading {plan.source}, {done // MEBIBYTE} of {total // MEBIBYTE} MiB"
        report(EngineStage("loading", said, done / total if total else 1.0))

    return hub.download(plan, show)
