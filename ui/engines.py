"""Which lanes there are right now, and what to do where there are none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from backend.client import read_lane
from backend.embedded_process import EngineStage
from backend.errors import EagleLensError
from backend.kept_baselines import KeptBaselines
from backend.lanes import Lane

EAGLE_LABEL, BASELINE_LABEL = "EAGLE-3", "Baseline"

Addresses = tuple[str | None, str | None]


@dataclass(frozen=True)
class EngineState:
    """What the page says of the engines. `problem` is a sentence with the remedy, empty where all is well.

    `fraction` is the loading progress in 0..1 while an engine loads; `aside` tells of a baseline that is not there.
    """

    eagle: Lane | None = None
    baseline: Lane | None = None
    problem: str = ""
    loading: str = ""
    fraction: float | None = None
    aside: str = ""

    @property
    def ready(self) -> bool:
        """A reply can be asked for, and nothing is wrong."""
        return self.eagle is not None and not self.problem


class Engines:
    """Finds the lanes behind the addresses that `stage` tells, and keeps them until `forget`.

    `kept` has the baselines measured before, for when there is no baseline lane.
    """

    def __init__(
        self,
        stage: Callable[[], EngineStage],
        api_key: str | None = None,
        ca_file: str | None = None,
        kept: KeptBaselines | None = None,
    ) -> None:
        self.kept = kept or KeptBaselines()
        self._stage = stage
        self._api_key = api_key
        self._ca_file = ca_file
        self._known: tuple[Addresses, EngineState] | None = None
        self._asking = asyncio.Lock()

    async def state(self) -> EngineState:
        """The state now; servers are asked only while it is not known to be good."""
        stage = self._stage()
        if stage.name != "ready" or stage.eagle_url is None:
            self.forget()
            failed = stage.name == "failed"
            return EngineState(
                problem=stage.message if failed else "",
                loading="" if failed else stage.message,
                fraction=stage.fraction,
            )
        async with self._asking:
            addresses = (stage.eagle_url, stage.baseline_url)
            if self._known is None or self._known[0] != addresses or not self._known[1].ready:
                self._known = (addresses, await self._look(addresses))
            return replace(self._known[1], aside=stage.aside)

    def forget(self) -> None:
        """Ask the servers again next time: one of them failed."""
        self._known = None

    async def _look(self, addresses: Addresses) -> EngineState:
        lanes: list[Lane | None] = []
        problems: list[str] = []
        for label, url in zip((EAGLE_LABEL, BASELINE_LABEL), addresses, strict=True):
            if url is None:
                lanes.append(None)
                continue
            try:
                lanes.append(await read_lane(url, label, api_key=self._api_key, ca_file=self._ca_file))
            except EagleLensError as error:
                lanes.append(None)
                problems.append(f"{label}: {error}")
        eagle, baseline = lanes
        return EngineState(eagle, baseline, " ".join(problems))
