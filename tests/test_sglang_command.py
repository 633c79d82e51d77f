"""Launch commands: one golden file holds every offered pair, both lanes, for the oldest and the newest version."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from backend.catalog import Pair, find_pair, list_offered, make_pair
from backend.sglang.command import LaunchRefusedError, build_command, build_environment, show_command
from backend.sglang.launch_spec import LaunchSpec, Nodes, describe_baseline, describe_eagle

GOLDEN = Path(__file__).parent / "golden" / "sglang-commands.txt"
PYTHON = Path("python")
VERSIONS = ("0.5.6", "0.5.23")


def show_or_refuse(spec: LaunchSpec) -> str:
    try:
        return show_command(spec)
    except LaunchRefusedError as error:
        return f"refused: {error}"


def show_every_command() -> str:
    blocks = []
    for pair in list_offered():
        for version in VERSIONS:
            eagle, baseline = (
                describe(pair, PYTHON, version, port)
                for describe, port in ((describe_eagle, 30000), (describe_baseline, 30001))
            )
            blocks.append(f"{pair.name}, SGLang {version}\n{show_or_refuse(eagle)}\n{show_or_refuse(baseline)}\n")
    return "\n".join(blocks)


def test_every_pair_has_the_golden_command_in_both_versions() -> None:
    """After a wanted change run with EAGLELENS_WRITE_GOLDEN=1 and read the difference."""
    if os.environ.get("EAGLELENS_WRITE_GOLDEN") == "1":
        GOLDEN.write_text(show_every_command(), encoding="utf-8")
    assert show_every_command() == GOLDEN.read_text(encoding="utf-8")


def eagle(version: str = "0.5.23", *further: str, pair: str = "llama-3.1-8b") -> LaunchSpec:
    return describe_eagle(find_pair(pair), PYTHON, version, 30000, *further)


def value_of(command: tuple[str, ...], flag: str) -> str:
    return command[len(command) - command[::-1].index(flag)]


def test_eagle3_without_a_draft_is_refused_before_anything_starts() -> None:
    with pytest.raises(LaunchRefusedError, match="needs a draft model"):
        build_command(replace(eagle(), draft=None))


def test_a_model_with_its_own_prediction_layers_needs_no_draft() -> None:
    command = build_command(eagle(pair="deepseek-r1"))
    assert "--speculative-draft-model-path" not in command
    assert value_of(command, "--speculative-algorithm") == "EAGLE"


@pytest.mark.parametrize(
    ("version", "spelling"),
    [
        ("0.5.6", "--cuda-graph-max-bs"),
        ("0.5.12", "--cuda-graph-max-bs"),
        ("0.5.16", "--cuda-graph-max-bs-decode"),
        ("0.5.23", "--cuda-graph-max-bs-decode"),
    ],
)
def test_a_renamed_flag_is_spelled_as_the_version_knows_it(version: str, spelling: str) -> None:
    command = build_command(eagle(version, "--cuda-graph-max-bs=4"))
    assert f"{spelling}=4" in command
    assert spelling in command


def test_a_removed_flag_is_refused_by_name() -> None:
    with pytest.raises(LaunchRefusedError, match=r"0\.5\.23 no longer has --attention-backend cutlass_mla"):
        build_command(eagle("0.5.23", "--attention-backend", "cutlass_mla"))
    build_command(eagle("0.5.6", "--attention-backend", "cutlass_mla"))


def test_further_flags_pass_through_last_and_so_win() -> None:
    command = build_command(eagle("0.5.23", "--mem-fraction-static", "0.5", "--enable-metrics"))
    assert command[-3:] == ("--mem-fraction-static", "0.5", "--enable-metrics")


def test_the_fitted_memory_fraction_replaces_the_pairs_own() -> None:
    command = build_command(replace(eagle(), mem_fraction=0.45))
    assert command.count("--mem-fraction-static") == 1
    assert value_of(command, "--mem-fraction-static") == "0.450"


def test_the_lanes_differ_in_speculation_only() -> None:
    pair = find_pair("kimi-k2")
    spec = describe_eagle(pair, PYTHON, "0.5.23", 30000)
    lanes = (build_command(spec), build_command(describe_baseline(pair, PYTHON, "0.5.23", 30000)))
    more = [word for word in lanes[0] if word not in lanes[1]]
    assert more[0] == "--speculative-algorithm"
    assert [word for word in more if word.startswith("--")] == [f for f in lanes[0] if f.startswith("--speculative-")]


def test_a_speculative_flag_of_the_user_does_not_reach_the_baseline() -> None:
    further = ("--speculative-draft-attention-backend", "fa3", "--page-size", "1")
    baseline = build_command(describe_baseline(find_pair("llama-3.1-8b"), PYTHON, "0.5.23", 30001, *further))
    assert not [word for word in baseline if "speculative" in word]
    assert baseline[-2:] == ("--page-size", "1")


def test_a_flag_that_the_app_sets_itself_is_refused() -> None:
    with pytest.raises(LaunchRefusedError, match="--port"):
        build_command(eagle("0.5.23", "--port", "1"))


def test_several_nodes_are_passed_on() -> None:
    command = build_command(replace(eagle(), nodes=Nodes(2, 1, "10.0.0.1:5000")))
    assert (value_of(command, "--nnodes"), value_of(command, "--node-rank")) == ("2", "1")
    assert value_of(command, "--dist-init-addr") == "10.0.0.1:5000"


def test_chosen_gpus_are_the_only_ones_visible() -> None:
    assert build_environment(replace(eagle(), gpus=("2", "3")))["CUDA_VISIBLE_DEVICES"] == "2,3"


def test_a_shell_gets_paths_with_blanks_back_whole() -> None:
    spec = describe_eagle(make_pair("/models/my target", "/models/draft"), PYTHON, "0.5.23", 30000)
    assert "'/models/my target'" in show_command(spec)


@pytest.mark.parametrize("version", ["0.4.9", "unknown"])
def test_a_version_outside_the_range_is_refused(version: str) -> None:
    with pytest.raises(LaunchRefusedError):
        build_command(eagle(version))


def test_speculation_on_a_cpu_is_refused_where_sglang_cannot() -> None:
    pair: Pair = make_pair("target", "draft", num_steps=3)
    with pytest.raises(LaunchRefusedError, match="CPU"):
        build_command(describe_eagle(pair, PYTHON, "0.5.6", 30000, "--device", "cpu"))
