"""From a pair to two servers that can be started: everything that can be checked before, is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from backend.catalog import Pair
from backend.hub import DownloadPlan, Hub, HubError, Role
from backend.ports import find_free_port
from backend.sglang.command import build_command
from backend.sglang.environment import find_sglang
from backend.sglang.fit import Arrangement, fit_pair, place_lanes
from backend.sglang.flags import drop_flags, read_flags
from backend.sglang.gpus import read_gpus
from backend.sglang.launch_spec import LaunchSpec, Nodes, describe_baseline, describe_eagle
from backend.sglang.model_needs import ModelNeeds, read_needs
from backend.sglang.supervisor import Patience

FIRST_PORT = 30000
LOCAL = "127.0.0.1"

Say = Callable[[str], None]


@dataclass(frozen=True)
class LaunchWish:
    """What a person asks for.

    `flags` are further SGLang flags for both lanes. Ports of 0 mean free ones. `baseline_gpus` are indices. With
    `nodes` only the drafting server is started.
    """

    pair: Pair
    python: Path | None = None
    flags: tuple[str, ...] = ()
    port: int = 0
    baseline_port: int = 0
    baseline_gpus: tuple[int, ...] = ()
    nodes: Nodes | None = None


@dataclass(frozen=True)
class LaunchPlan:
    """Two servers ready to start, once `target` and `draft` are on the disk. `baseline` is None with several nodes."""

    pair: Pair
    target: DownloadPlan
    draft: DownloadPlan | None
    eagle: LaunchSpec
    baseline: LaunchSpec | None
    arrangement: Arrangement
    patience: Patience

    @property
    def takes_turns(self) -> bool:
        """Whether there is a baseline, but only with the drafting server stopped."""
        return self.baseline is not None and self.arrangement == Arrangement.TAKING_TURNS

    @property
    def api_key(self) -> str | None:
        """The key that the servers will ask for, where the person passed one."""
        given = [value for name, value in read_flags(self.eagle.flags) if name == "--api-key"]
        return given[-1] if given else None

    @property
    def missing_bytes(self) -> int:
        """What has to be fetched for both models."""
        return sum(plan.missing_bytes for plan in (self.target, self.draft) if plan is not None)


def plan_launch(wish: LaunchWish, hub: Hub, say: Say) -> LaunchPlan:
    """Find SGLang, the models and room for them; `say` tells what was found.

    Raises NoSglangError, HubError, LaunchRefusedError, DoesNotFitError or RuntimeError: each message is one for the
    person, with the remedy.
    """
    pair = wish.pair
    found = find_sglang(wish.python)
    say(f"SGLang {found.version} of {found.python}")
    target = hub.plan(pair.target, Role.TARGET, pair.trust_remote_code)
    draft = hub.plan(pair.draft, Role.DRAFT) if pair.draft else None
    for plan in (target, draft):
        if plan is not None:
            say(_describe_download(plan))
    port = wish.port or find_free_port(LOCAL, FIRST_PORT)
    baseline_port = wish.baseline_port or find_free_port(LOCAL, port + 1)
    eagle = describe_eagle(pair, found.python, found.version, port, *wish.flags)
    baseline = describe_baseline(pair, found.python, found.version, baseline_port, *wish.flags)
    patience = Patience()
    if wish.nodes is not None:
        say(_describe_nodes(wish.nodes))
        if wish.nodes.rank > 0:
            patience = Patience(start=math.inf, silence=math.inf)  # it answers no request, so it is never "ready"
        launch = LaunchPlan(
            pair, target, draft, replace(eagle, nodes=wish.nodes), None, Arrangement.TAKING_TURNS, patience
        )
    elif _runs_on_cpu(wish.flags):
        launch = LaunchPlan(pair, target, draft, eagle, baseline, Arrangement.BESIDE, patience)
    else:
        gpus = read_gpus(found.python)
        needs = _read_needs(hub, target), _read_needs(hub, draft) if draft is not None else None
        fit = fit_pair(*needs, gpus, pair.tp or _read_tp(wish.flags), wish.baseline_gpus)
        say(fit.sentence)
        eagle, baseline = place_lanes(_without_tp(eagle), _without_tp(baseline), fit, gpus)
        launch = LaunchPlan(pair, target, draft, eagle, baseline, fit.arrangement, patience)
    for spec in (launch.eagle, launch.baseline):
        if spec is not None:
            build_command(spec)
    _require_room(launch)
    return launch


def _read_needs(hub: Hub, plan: DownloadPlan) -> ModelNeeds:
    return read_needs(hub.read_config(plan), plan.weight_bytes)


def _runs_on_cpu(flags: tuple[str, ...]) -> bool:
    return ("--device", "cpu") in read_flags(flags)


def _read_tp(flags: tuple[str, ...]) -> int | None:
    given = [value for name, value in read_flags(flags) if name in ("--tp", "--tp-size") and value]
    return int(given[-1]) if given and given[-1].isdigit() else None


def _without_tp(spec: LaunchSpec) -> LaunchSpec:
    """The number of GPUs is the fit's to say."""
    return replace(spec, flags=drop_flags(spec.flags, "--tp"))


def _describe_nodes(nodes: Nodes) -> str:
    here = "it serves, so open this page" if nodes.rank == 0 else "it serves nothing itself: open the page of node 0"
    return (
        f"This is node {nodes.rank} of {nodes.count}; {here}. Run the same command on each machine, only with "
        f"--node-rank 0 to {nodes.count - 1}; all must reach {nodes.address}, an address and free port of node 0. "
        "Several nodes run the EAGLE-3 server alone. For a baseline start both servers by hand and attach to them."
    )


def _describe_download(plan: DownloadPlan) -> str:
    if plan.folder is not None or plan.missing_bytes == 0:
        return f"{plan.source}: on this machine"
    return (
        f"{plan.source}: {plan.total_bytes / 1e9:.1f} GB, of which {plan.missing_bytes / 1e9:.1f} GB are to be fetched "
        f"({plan.free_bytes / 1e9:.1f} GB free)"
    )


def _require_room(launch: LaunchPlan) -> None:
    free = [plan.free_bytes for plan in (launch.target, launch.draft) if plan is not None and plan.missing_bytes]
    if free and launch.missing_bytes > min(free):
        raise HubError(
            f"The pair needs {launch.missing_bytes / 1e9:.1f} GB and {min(free) / 1e9:.1f} GB are free: make room, or "
            "set HF_HOME to a folder on a larger disk."
        )
