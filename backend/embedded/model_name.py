"""What a model folder is called on the screen."""

from __future__ import annotations

from pathlib import Path


def name_model(folder: Path) -> str:
    """`owner/name` for a snapshot in the hub's cache, whose folder is called by its commit; else the folder's name."""
    repository = folder.parent.parent.name
    if folder.parent.name == "snapshots" and repository.startswith("models--"):
        return repository.removeprefix("models--").replace("--", "/", 1)
    return folder.resolve().name
