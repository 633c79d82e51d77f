"""Real SGLang with the chain pair, launched through the app's own launcher: kill it, restart it, leave nothing."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest

from backend.catalog import make_pair
from backend.sglang.environment import find_sglang
from backend.sglang.launch_spec import LaunchSpec, describe_baseline, describe_eagle
from backend.sglang.state import Stage
from backend.sglang.supervisor import Supervisor
from tests.sglang_cpu.chain_models import ChainModels
from tests.sglang_cpu.server import COMMON, environment_variables, free_port

READY_WITHIN = 240.0
INTEL = ("--prefill-attention-backend", "intel_amx", "--decode-attention-backend", "intel_amx")


def chain_spec(python: Path, chain: ChainModels, baseline: bool = False) -> LaunchSpec:
    pair = make_pair(str(chain.target), str(chain.draft), num_steps=3)
    describe = describe_baseline if baseline else describe_eagle
    flags = (*COMMON, "--attention-backend", "torch_native") if baseline else (*COMMON, *INTEL)
    found = find_sglang(python)
    spec = describe(pair, found.python, found.version, free_port(), *flags)
    needed = environment_variables().items() - os.environ.items()
    return replace(spec, environment=dict(needed))


def count_on(base_url: str, tokens: int) -> dict[str, object]:
    request = {"input_ids": [9, 10], "sampling_params": {"temperature": 0, "max_new_tokens": tokens}}
    reply: dict[str, object] = httpx.post(f"{base_url}/generate", json=request, timeout=120, trust_env=False).json()
    return reply


def group_of(leader: int) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if _group(process.pid) == leader]


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


@pytest.mark.timeout(900)
def test_a_killed_eagle3_server_is_restarted_and_nothing_is_left(
    sglang_python: Path, chain_models: ChainModels, tmp_path: Path
) -> None:
    supervisor = Supervisor(tmp_path)
    try:
        spec = chain_spec(sglang_python, chain_models)
        assert spec.version == "0.5.23"
        supervisor.start(spec)
        first = supervisor.wait_until_settled(READY_WITHIN)
        assert first.stage == Stage.READY, "\n".join(first.log_tail)
        reply = count_on(spec.base_url, 26)
        assert reply["output_ids"] == list(range(11, 37))

        assert first.pid is not None
        assert len(group_of(first.pid)) >= 3  # HTTP server, scheduler, detokenizer
        os.kill(first.pid, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while supervisor.state.stage == Stage.READY and time.monotonic() < deadline:
            time.sleep(0.1)
        killed = supervisor.state
        assert killed.stage == Stage.FAILED
        assert killed.reason == "The server was killed."
        assert not group_of(first.pid)

        supervisor.restart()
        again = supervisor.wait_until_settled(READY_WITHIN)
        assert again.stage == Stage.READY, "\n".join(again.log_tail)
        assert count_on(spec.base_url, 6)["output_ids"] == list(range(11, 17))
        assert again.pid is not None
    finally:
        supervisor.stop()
    stopped = supervisor.state
    assert stopped.stage == Stage.STOPPED
    assert not group_of(again.pid)


@pytest.mark.timeout(600)
def test_a_real_crash_is_explained(sglang_python: Path, chain_models: ChainModels, tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)
    spec = chain_spec(sglang_python, chain_models, baseline=True)
    try:
        supervisor.start(replace(spec, flags=(*spec.flags, "--no-such-flag")))
        state = supervisor.wait_until_settled(READY_WITHIN)
        assert state.stage == Stage.FAILED
        assert "--no-such-flag" in (state.reason or "")
    finally:
        supervisor.stop()
