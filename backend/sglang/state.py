"""How far a supervised server is, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Stage(StrEnum):
    """What a server is doing, in the order of a start."""

    IDLE = "idle"  # never started
    STARTING = "starting"
    LOADING_WEIGHTS = "loading weights"
    ALLOCATING_CACHE = "allocating the KV cache"
    CAPTURING_GRAPHS = "capturing graphs"
    WARMING_UP = "warming up"
    READY = "ready"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


RUNNING = frozenset(
    {
        Stage.STARTING,
        Stage.LOADING_WEIGHTS,
        Stage.ALLOCATING_CACHE,
        Stage.CAPTURING_GRAPHS,
        Stage.WARMING_UP,
        Stage.READY,
    }
)
SETTLED = frozenset({Stage.IDLE, Stage.READY, Stage.STOPPED, Stage.FAILED})


@dataclass(frozen=True)
class ServerState:
    """A snapshot. `since` is Unix time; `reason` and `remedy` are sentences, there when the stage is FAILED."""

    label: str
    stage: Stage
    since: float
    base_url: str | None = None
    pid: int | None = None  # the server's, and its process group's
    log: Path | None = None
    log_tail: tuple[str, ...] = ()
    reason: str | None = None
    remedy: str | None = None
    starts: int = 0  # how often it was started
