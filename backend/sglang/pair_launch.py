"""A pair from its plan to two servers that answer: download, start, supervise; told as stages for the page."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

from platformdirs import user_log_path

from backend.embedded_process import EngineStage
from backend.hub import DownloadPlan, Hub, HubError, Progress
from backend.sglang.launch_plan import LaunchPlan
from backend.sglang.launch_spec import LaunchSpec
from backend.sglang.pair_servers import PairServers
from backend.sglang.state import ServerState, Stage

POLL = 0.25
# A share of the bar for each stage of a start, so that it moves on; not a forecast of time.
_SHARES = {
    Stage.STARTING: 0.1,
    Stage.LOADING_WEIGHTS: 0.3,
    Stage.ALLOCATING_CACHE: 0.6,
    Stage.CAPTURING_GRAPHS: 0.7,
    Stage.WARMING_UP: 0.9,
}


class PairLaunch:
    """Runs a plan. `stage` never waits; `servers` is there once both models are on the disk."""

    def __init__(self, plan: LaunchPlan, hub: Hub, log_folder: Path | None = None) -> None:
        self.plan = plan
        self._hub = hub
        self._logs = log_folder or user_log_path("eaglelens")
        self._preparing = EngineStage("loading", "Preparing the models", 0.0)
        self._specs = plan.eagle, plan.baseline
        self._servers: PairServers | None = None
        self._acting = threading.Lock()
        self._stopped = False

    @property
    def servers(self) -> PairServers | None:
        """The two servers, None before the models are on the disk."""
        return self._servers

    @property
    def specs(self) -> tuple[LaunchSpec, LaunchSpec | None]:
        """The drafting server and the baseline, as they are started."""
        return self._specs

    @property
    def stage(self) -> EngineStage:
        """How far the drafting server is, the baseline beside it."""
        servers = self._servers
        return self._preparing if servers is None else read_pair_stage(servers.eagle, servers.baseline)

    def start(self) -> None:
        """Begin in the background; returns at once."""
        threading.Thread(target=self._run, name="pair-launch", daemon=True).start()

    def wait_for_change(self, seen: EngineStage, timeout: float) -> EngineStage:
        """The stage once it differs from `seen`, or after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while (stage := self.stage) == seen and time.monotonic() < deadline:
            time.sleep(POLL)
        return stage

    def stop(self) -> None:
        """End both servers; returns when nothing of them is left. A download ends with this program."""
        with self._acting:
            self._stopped = True
            servers = self._servers
        if servers is not None:
            servers.stop()

    def _run(self) -> None:
        try:
            self._specs = eagle, baseline = self._fetch()
        except HubError as error:
            self._preparing = EngineStage("failed", str(error))
            return
        servers = PairServers(eagle, baseline, self.plan.arrangement, self._logs, self.plan.patience)
        with self._acting:
            if self._stopped:
                return
            self._servers = servers
            servers.start()

    def _fetch(self) -> tuple[LaunchSpec, LaunchSpec | None]:
        """Both specs with the folders of the models in place of their names."""
        plan = self.plan
        target = str(self._download(plan.target))
        draft = None if plan.draft is None else str(self._download(plan.draft))
        eagle = replace(plan.eagle, target=target, draft=draft)
        return eagle, None if plan.baseline is None else replace(plan.baseline, target=target)

    def _download(self, files: DownloadPlan) -> Path:
        def show(progress: Progress) -> None:
            done, total = progress.done_bytes / 1e9, progress.total_bytes / 1e9
            fraction = progress.done_bytes / progress.total_bytes if progress.total_bytes else 1.0
            self._preparing = EngineStage(
                "loading", f"Downloading {files.source}, {done:.1f} of {total:.1f} GB", fraction
            )

        return self._hub.download(files, show)


def read_pair_stage(eagle: ServerState, baseline: ServerState) -> EngineStage:
    """Two servers as one stage: that of the drafting one, with the baseline as soon as it is ready."""
    match eagle.stage:
        case Stage.READY:
            url = baseline.base_url if baseline.stage == Stage.READY else None
            return EngineStage("ready", "Ready", 1.0, eagle.base_url, url, _describe_baseline(baseline))
        case Stage.FAILED:
            return EngineStage("failed", f"{eagle.label}: {eagle.reason} {eagle.remedy}")
        case Stage.STOPPED | Stage.STOPPING if baseline.stage not in (Stage.IDLE, Stage.STOPPED):
            return EngineStage(
                "loading", f"The two take turns: {eagle.label} is stopped, {baseline.label} has the GPUs"
            )
        case Stage.IDLE:
            return EngineStage("loading", f"{eagle.label}: {Stage.STARTING}", _SHARES[Stage.STARTING])
        case stage:
            return EngineStage("loading", f"{eagle.label}: {stage}", _SHARES.get(stage, 0.0))


def _describe_baseline(baseline: ServerState) -> str:
    match baseline.stage:
        case Stage.READY | Stage.IDLE | Stage.STOPPED:
            return ""
        case Stage.FAILED:
            return f"{baseline.label}: {baseline.reason} {baseline.remedy}"
        case stage:
            return f"{baseline.label}: {stage}."
