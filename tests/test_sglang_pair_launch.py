"""A pair from a wish to stages: what is checked before anything starts, and what is told while it starts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import app
from backend.catalog import make_pair
from backend.embedded_process import EngineStage
from backend.hub import Hub, HubError
from backend.sglang.command import LaunchRefusedError, build_command
from backend.sglang.fit import Arrangement, DoesNotFitError
from backend.sglang.launch_plan import LaunchPlan, LaunchWish, plan_launch
from backend.sglang.launch_spec import LaunchSpec, Nodes
from backend.sglang.pair_launch import PairLaunch
from backend.sglang.supervisor import Patience
from tests.sglang_standin import READY

SOON = 20.0
CONFIG = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 64, "torch_dtype": "bfloat16"}
ON_CPU = ("--device", "cpu")


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A "Python with SGLang" that tells a version, and no GPU."""
    path = tmp_path / "bin-python"
    path.write_text('#!/bin/sh\ncase "$2" in *sglang*) echo 0.5.23;; *) echo "[]";; esac\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def models(tmp_path: Path) -> tuple[str, str]:
    folders = tmp_path / "target", tmp_path / "draft"
    for folder in folders:
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(CONFIG))
        (folder / "model.safetensors").write_bytes(b"0" * 100)
    return str(folders[0]), str(folders[1])


def plan(models: tuple[str, str | None], python: Path, *flags: str, said: list[str] | None = None) -> LaunchPlan:
    wish = LaunchWish(make_pair(*models, num_steps=3), python, flags)
    return plan_launch(wish, Hub(), (said if said is not None else []).append)


def test_both_lanes_get_the_flags_and_ports_of_their_own(models: tuple[str, str], python: Path) -> None:
    said: list[str] = []
    launch = plan(models, python, *ON_CPU, said=said)
    assert launch.baseline is not None
    assert launch.eagle.port != launch.baseline.port
    assert launch.eagle.flags == launch.baseline.flags == ON_CPU
    assert launch.eagle.speculation is not None and launch.baseline.speculation is None
    assert any("0.5.23" in line for line in said)
    assert any(line == f"{models[0]}: on this machine" for line in said)


@pytest.mark.parametrize(("rank", "said"), [(0, "open this page"), (1, "open the page of node 0")])
def test_several_nodes_start_no_baseline_and_are_told_what_to_run_where(
    models: tuple[str, str], python: Path, rank: int, said: str
) -> None:
    lines: list[str] = []
    wish = LaunchWish(make_pair(*models, num_steps=3), python, nodes=Nodes(2, rank, "10.0.0.1:5000"))
    launch = plan_launch(wish, Hub(), lines.append)
    assert (launch.baseline, launch.takes_turns) == (None, False)
    words = build_command(launch.eagle)
    assert words[words.index("--node-rank") + 1] == str(rank)
    assert f"This is node {rank} of 2" in lines[-1] and said in lines[-1] and "10.0.0.1:5000" in lines[-1]
    assert launch.patience.start == (float("inf") if rank else Patience().start)


def test_a_key_behind_the_dashes_is_the_one_that_the_app_uses(models: tuple[str, str], python: Path) -> None:
    assert plan(models, python, *ON_CPU, "--api-key", "s3cret").api_key == "s3cret"
    assert plan(models, python, *ON_CPU).api_key is None


def test_without_a_gpu_a_pair_is_refused_with_the_other_ways(models: tuple[str, str], python: Path) -> None:
    with pytest.raises(DoesNotFitError, match="--eagle-url"):
        plan(models, python)


def test_a_target_alone_is_refused_before_anything_starts(models: tuple[str, str], python: Path) -> None:
    with pytest.raises(LaunchRefusedError, match="--draft"):
        plan((models[0], None), python, *ON_CPU)


def test_a_missing_folder_is_told(python: Path, tmp_path: Path) -> None:
    with pytest.raises(HubError, match="There is no folder"):
        plan((str(tmp_path / "none"), str(tmp_path / "none")), python, *ON_CPU)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--pair", "llama-3.1-8"], "llama-3.1-8b"),
        (["--target", "a/b", "--draft", "c/d", "--topk", "4"], "--draft-tokens"),
        (["--pair", "qwen3-8b", "--sglang-python", "/nowhere/python"], "--sglang-python"),
    ],
)
def test_what_cannot_start_ends_with_status_1_and_one_sentence(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.main(["--no-browser", *arguments]) == 1
    output = capsys.readouterr().out
    assert said in output
    assert len(output.splitlines()) == 1


def launch_of(eagle: LaunchSpec, baseline: LaunchSpec, models: tuple[str, str], logs: Path) -> PairLaunch:
    hub = Hub()
    target, draft = hub.plan(models[0]), hub.plan(models[1])
    eagle, baseline = replace(eagle, label="EAGLE-3"), replace(baseline, label="Baseline")
    pair = make_pair(*models, num_steps=3)
    both = LaunchPlan(pair, target, draft, eagle, baseline, Arrangement.BESIDE, Patience(stop=1.0))
    return PairLaunch(both, hub, logs)


def wait_for(launch: PairLaunch, wanted: Callable[[EngineStage], bool]) -> EngineStage:
    deadline = time.monotonic() + SOON
    while not wanted(launch.stage):
        assert time.monotonic() < deadline, launch.stage
        time.sleep(0.05)
    return launch.stage


def test_the_page_is_ready_with_the_drafting_server_and_tells_of_the_baseline(
    standin: Callable[[str], LaunchSpec], models: tuple[str, str], tmp_path: Path
) -> None:
    launch = launch_of(standin(READY), standin("wait 2; " + READY), models, tmp_path / "logs")
    launch.start()
    try:
        first = wait_for(launch, lambda stage: stage.name == "ready")
        assert first.eagle_url and first.baseline_url is None
        wait_for(launch, lambda stage: stage.aside == "Baseline: starting.")
        both = wait_for(launch, lambda stage: stage.baseline_url is not None)
        assert (both.name, both.aside) == ("ready", "")
    finally:
        launch.stop()
    assert launch.stage.name == "loading"


def test_a_server_that_fails_is_told_with_its_remedy(
    standin: Callable[[str], LaunchSpec], models: tuple[str, str], tmp_path: Path
) -> None:
    launch = launch_of(
        standin("say torch.OutOfMemoryError: CUDA out of memory; exit 1"), standin(READY), models, tmp_path
    )
    launch.start()
    try:
        failed = wait_for(launch, lambda stage: stage.name == "failed")
        assert failed.message.startswith("EAGLE-3: ")
        assert "memory" in failed.message
    finally:
        launch.stop()
