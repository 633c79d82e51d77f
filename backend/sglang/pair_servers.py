"""The two servers of a pair on one machine: started in turn, or taking turns where only one has room."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from backend.sglang.fit import Arrangement
from backend.sglang.launch_spec import LaunchSpec
from backend.sglang.state import SETTLED, ServerState, Stage
from backend.sglang.supervisor import Patience, Supervisor

POLL = 0.5


@dataclass(frozen=True)
class Wish:
    """Something asked of the two servers, under way in the background."""

    work: threading.Thread
    is_newest: Callable[[], bool]  # nothing else has been asked for since


class PairServers:
    """Both lanes of a pair.

    The memory share of a server is taken of what is free when it starts, so the baseline starts only when the
    drafting server is ready. Where they take turns, `show_baseline` and `show_eagle` stop the one and start the
    other. Methods return at once; `eagle` and `baseline` tell how far each is.
    """

    def __init__(
        self,
        eagle: LaunchSpec,
        baseline: LaunchSpec | None,
        arrangement: Arrangement,
        log_folder: Path,
        patience: Patience | None = None,
    ) -> None:
        self.arrangement = arrangement
        self._specs = (eagle, baseline)
        self._eagle = Supervisor(log_folder, eagle.label, patience)
        self._baseline = Supervisor(log_folder, baseline.label if baseline else "Baseline", patience)
        self._acting = threading.Lock()  # one step at a time
        self._wishing = threading.Lock()
        self._wish = 0  # counts; only the newest is followed
        self._ended = False

    @property
    def eagle(self) -> ServerState:
        """The drafting server."""
        return self._eagle.state

    @property
    def baseline(self) -> ServerState:
        """The server without speculation; IDLE for good where the pair has none."""
        return self._baseline.state

    def start(self) -> None:
        """Start the drafting server and, once that is ready, the baseline, unless they take turns."""
        both = self.arrangement != Arrangement.TAKING_TURNS
        self._in_turn(self._start_eagle, *((self._start_baseline,) if both else ()))

    def show_eagle(self) -> None:
        """Where they take turns: stop the baseline, start the drafting server."""
        self._in_turn(self._stop_baseline, self._start_eagle)

    def show_baseline(self) -> Wish:
        """Where they take turns: stop the drafting server, start the baseline."""
        return self._in_turn(self._stop_eagle, self._start_baseline)

    def restart_eagle(self) -> None:
        """Start the drafting server again."""
        self._in_turn(self._start_eagle)

    def restart_baseline(self) -> None:
        """Start the baseline again."""
        self._in_turn(self._start_baseline)

    def stop(self) -> None:
        """End both for good; returns when nothing of them is left."""
        self._take_wish()
        with self._acting:
            self._ended = True
            self._baseline.stop()
            self._eagle.stop()

    def _in_turn(self, *steps: Callable[[], Supervisor | None]) -> Wish:
        """Do the steps in the background, each when a server that was just started has settled, until a newer wish."""
        wish = self._take_wish()

        def work() -> None:
            for step in steps:
                with self._acting:
                    if wish != self._wish or self._ended:
                        return
                    server = step()
                if server is not None and self._settle(server, wish) == Stage.FAILED:
                    return

        thread = threading.Thread(target=work, name="sglang-pair", daemon=True)
        thread.start()
        return Wish(thread, lambda: wish == self._wish)

    def _take_wish(self) -> int:
        with self._wishing:
            self._wish += 1
            return self._wish

    def _settle(self, server: Supervisor, wish: int) -> Stage:
        while True:
            stage = server.wait_until_settled(POLL).stage
            if stage in SETTLED or wish != self._wish:
                return stage

    def _start_eagle(self) -> Supervisor:
        self._eagle.start(self._specs[0])
        return self._eagle

    def _start_baseline(self) -> Supervisor:
        if self._specs[1] is not None:
            self._baseline.start(self._specs[1])
        return self._baseline

    def _stop_eagle(self) -> None:
        self._eagle.stop()

    def _stop_baseline(self) -> None:
        self._baseline.stop()
