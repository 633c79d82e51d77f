"""The command line: which engine it asks for, with what, and what does not go together."""

from __future__ import annotations

import pytest

from backend.sglang.launch_spec import Nodes
from ui.options import describe_pairs, list_embedded_options, read_options, read_wish


@pytest.mark.parametrize(
    ("arguments", "engine"),
    [
        ([], "embedded"),
        (["--pair", "llama-3.1-8b"], "sglang"),
        (["--target", "a/b", "--draft", "c/d"], "sglang"),
        (["--engine", "embedded", "--target", "folder", "--draft", "folder"], "embedded"),
        (["--eagle-url", "http://127.0.0.1:30000"], "attached"),
    ],
)
def test_the_options_say_which_engine_runs(arguments: list[str], engine: str) -> None:
    assert read_options(arguments).engine == engine


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--baseline-url", "http://127.0.0.1:1"], "--eagle-url"),
        (["--api-key", "secret"], "--eagle-url"),
        (["--eagle-url", "http://127.0.0.1:1", "--pair", "qwen3-8b"], "leave --pair"),
        (["--eagle-url", "http://127.0.0.1:1", "--", "--tp-size", "2"], "attaching starts none"),
        (["--pair", "qwen3-8b", "--target", "a/b"], "not both"),
        (["--draft", "c/d"], "--target"),
        (["--engine", "sglang"], "--list-pairs"),
        (["--engine", "embedded", "--pair", "qwen3-8b"], "embedded"),
        (["--engine", "embedded", "--topk", "4"], "--steps alone"),
        (["--pair", "qwen3-8b", "--nnodes", "2"], "--dist-init-addr"),
        (["--pair", "qwen3-8b", "--baseline-gpus", "two"], "2,3"),
    ],
)
def test_options_that_do_not_go_together_are_refused_with_the_remedy(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        read_options(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_pair_of_ones_own_takes_its_numbers_and_passes_further_flags_on() -> None:
    wish = read_wish(read_options(["--target", "a/b", "--draft", "c/d", "--steps", "5", "--", "--page-size", "1"]))
    speculation = wish.pair.speculation
    assert (wish.pair.target, wish.pair.draft) == ("a/b", "c/d")
    assert (speculation.num_steps, speculation.topk, speculation.draft_tokens) == (5, 1, 6)
    assert wish.flags == ("--page-size", "1")


def test_a_named_pair_keeps_its_flags_and_takes_other_steps() -> None:
    wish = read_wish(read_options(["--pair", "kimi-k2", "--steps", "5", "--baseline-gpus", "8,9"]))
    assert (wish.pair.speculation.num_steps, wish.pair.speculation.draft_tokens, wish.pair.tp) == (5, 6, 8)
    assert wish.pair.trust_remote_code
    assert wish.baseline_gpus == (8, 9)


def test_several_nodes_are_told_who_they_are() -> None:
    nodes = ["--nnodes", "2", "--node-rank", "1", "--dist-init-addr", "host:5000"]
    assert read_wish(read_options(["--pair", "kimi-k2", *nodes])).nodes == Nodes(2, 1, "host:5000")


def test_the_embedded_engine_takes_a_pair_and_what_stands_behind_the_dashes() -> None:
    chosen = ["--target", "T", "--draft", "D", "--dtype", "bf16", "--num-steps", "4"]
    options = read_options(["--engine", "embedded", *chosen, "--", "--threads", "1"])
    assert (options.target, options.draft) == ("T", "D")
    words = list_embedded_options(options)
    for name, value in {"--dtype": "bf16", "--num-steps": "4"}.items():
        assert words[words.index(name) + 1] == value
    assert words[-2:] == ["--threads", "1"]


def test_a_device_goes_to_the_embedded_engine_and_to_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    words = list_embedded_options(read_options(["--device", "cuda:1"]))
    assert words[words.index("--device") + 1] == "cuda:1"
    with pytest.raises(SystemExit):
        read_options(["--pair", "llama-3.1-8b", "--device", "cuda"])
    assert "SGLang takes its own behind --" in capsys.readouterr().err


def test_the_embedded_engine_takes_a_draft_for_its_built_in_target() -> None:
    assert read_options(["--engine", "embedded", "--draft", "D"]).target is None


def test_the_list_of_pairs_has_a_line_for_each() -> None:
    assert any(line.startswith("llama-3.1-8b ") and "EAGLE3" in line for line in describe_pairs().splitlines())
