"""The runs being written now, by name: how the page asks for missed tokens, and how Stop finds its run."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

from ui.token_stream import StreamView

KEPT = 64  # finished runs that can still be asked for


@dataclass
class LiveRun:
    """One run, by a random name that only its own page knows. Setting `stop` ends it; then `ended` is set."""

    view: StreamView
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class LiveRuns:
    """All runs of this app, of all visitors; the oldest finished ones are forgotten.

    Whatever measures holds `alone` meanwhile, so that measurements take turns.
    """

    def __init__(self) -> None:
        self.alone = asyncio.Lock()
        self._runs: OrderedDict[str, LiveRun] = OrderedDict()

    def begin(self, view: StreamView) -> LiveRun:
        """Enter a run under `view.run`."""
        live = LiveRun(view)
        self._runs[view.run] = live
        for name in [name for name, run in self._runs.items() if run.ended.is_set()][:-KEPT]:
            del self._runs[name]
        return live

    def get(self, run: str) -> LiveRun | None:
        """The run of this name, None where it is unknown or forgotten."""
        return self._runs.get(run)

    def running(self) -> frozenset[str]:
        """The names of the runs that have not ended."""
        return frozenset(name for name, run in self._runs.items() if not run.ended.is_set())

    def whole(self, run: str) -> StreamView | None:
        """Everything known of the run of this name."""
        live = self._runs.get(run)
        return None if live is None else live.view
