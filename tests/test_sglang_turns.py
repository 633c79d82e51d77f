"""Real SGLang with the chain pair, asking for a key: its baseline is measured in turn, and the key stays hidden."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from backend.client import read_lane
from backend.errors import LaneError
from backend.events import Exactness, Request, Sampling, Source
from backend.kept_baselines import KeptBaselines
from backend.lanes import hide_secrets
from backend.sglang.baseline_turn import BaselineTurn, Question, measure_alone
from backend.sglang.fit import Arrangement
from backend.sglang.launch_spec import LaunchSpec
from backend.sglang.pair_servers import PairServers
from backend.sglang.state import ServerState, Stage
from tests.sglang_cpu.chain_models import ChainModels
from tests.test_sglang_launch import chain_spec
from ui.backend_view import LaneReport, show_launch, show_log

READY_WITHIN = 500.0
KEY = "s3cret-of-this-test"
QUESTION = Question("Count on", [{"role": "user", "content": "w9 w10"}], Sampling(max_tokens=30))


def wait_for(servers: PairServers, starts: int) -> ServerState:
    deadline = time.monotonic() + READY_WITHIN
    while servers.eagle.stage != Stage.READY or servers.eagle.starts != starts:
        assert servers.eagle.stage != Stage.FAILED, "\n".join(servers.eagle.log_tail)
        assert time.monotonic() < deadline, servers.eagle.stage
        time.sleep(0.2)
    return servers.eagle


def with_key(spec: LaunchSpec) -> LaunchSpec:
    return replace(spec, flags=(*spec.flags, "--api-key", KEY))


@pytest.mark.timeout(1800)
async def test_a_real_baseline_is_measured_in_turn_with_a_key_that_nothing_shows(
    sglang_python: Path, chain_models: ChainModels, tmp_path: Path
) -> None:
    eagle = with_key(chain_spec(sglang_python, chain_models))
    baseline = with_key(chain_spec(sglang_python, chain_models, baseline=True))
    kept = KeptBaselines(tmp_path / "baselines")
    turn = BaselineTurn(kept, KEY)
    servers = PairServers(eagle, baseline, Arrangement.TAKING_TURNS, tmp_path / "logs")
    servers.start()
    try:
        wait_for(servers, 1)
        turn.start(servers, [QUESTION])
        while turn.state.phase == "running":
            time.sleep(0.5)
        assert turn.state.phase == "done", turn.state.message
        state = wait_for(servers, 2)
        assert servers.baseline.stage == Stage.STOPPED
        with pytest.raises(LaneError, match="refused the key"):
            await read_lane(eagle.base_url, "EAGLE-3", api_key="wrong", with_vocabulary=False)
        lane = await read_lane(eagle.base_url, "EAGLE-3", api_key=KEY)
        drafted = await measure_alone(lane, QUESTION)
    finally:
        servers.stop()
    run = kept.find(lane, Request("", drafted.request.prompt_ids, QUESTION.sampling))
    assert run is not None
    assert (run.exactness, run.num_steps, run.server["version"]) == (Exactness.EXACT, 0, "0.5.23")
    assert {token.source for token in run.tokens[1:]} == {Source.TARGET}
    assert [token.id for token in run.tokens] == [token.id for token in drafted.tokens]
    report = LaneReport("EAGLE-3", lane, server=state, spec=eagle)
    shown = [show_log(report), show_launch(report), show_launch(LaneReport("EAGLE-3", lane)), str(lane.facts)]
    shown += [str(hide_secrets(line)) for log in (tmp_path / "logs").iterdir() for line in log.read_text().splitlines()]
    shown += [path.read_text() for path in kept.folder.iterdir()]
    assert not [text for text in shown if KEY in text]
