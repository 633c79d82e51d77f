"""Fit: GPUs per lane, the baseline's place and the two memory fractions, before anything starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.catalog import find_pair
from backend.sglang.command import build_command, build_environment
from backend.sglang.fit import (
    FEWEST_TOKENS,
    GIB,
    OVERHEAD_BYTES,
    Arrangement,
    DoesNotFitError,
    fit_pair,
    place_lanes,
)
from backend.sglang.gpus import Gpu, read_gpus
from backend.sglang.launch_spec import describe_baseline, describe_eagle
from backend.sglang.model_needs import ModelNeeds, read_needs

LLAMA_8B = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "torch_dtype": "bfloat16",
}
LLAMA_70B = LLAMA_8B | {"num_hidden_layers": 80, "num_attention_heads": 64, "hidden_size": 8192}
KIMI_K2 = {
    "num_hidden_layers": 61,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "torch_dtype": "bfloat16",
}
DRAFT = LLAMA_8B | {"num_hidden_layers": 1}


def gpus(count: int, free_gib: float, name: str = "H200") -> list[Gpu]:
    return [Gpu(index, name, int(free_gib * GIB), int(free_gib * GIB), str(index)) for index in range(count)]


def needs(config: dict[str, object], gigabytes: float) -> ModelNeeds:
    return read_needs(config, int(gigabytes * 1e9))


EIGHT_B = needs(LLAMA_8B, 16.1)
SEVENTY_B = needs(LLAMA_70B, 141.1)
SMALL_DRAFT = needs(DRAFT, 0.8)


def test_a_token_of_llama_8b_takes_128_kib() -> None:
    assert EIGHT_B.kv_bytes_per_token(1) == 128 * 1024
    assert EIGHT_B.kv_bytes_per_token(4) == 32 * 1024


def test_heads_are_repeated_on_more_gpus_than_there_are_heads() -> None:
    assert EIGHT_B.kv_bytes_per_token(16) == EIGHT_B.kv_bytes_per_token(8)


def test_a_compressed_cache_is_whole_on_every_gpu() -> None:
    kimi = needs(KIMI_K2, 1030)
    assert kimi.kv_bytes_per_token(8) == kimi.kv_bytes_per_token(1) == 61 * 576 * 2


def test_a_config_with_its_text_part_nested_is_read() -> None:
    assert read_needs({"text_config": LLAMA_8B}, 1) == read_needs(LLAMA_8B, 1)


def test_a_config_without_layers_is_named() -> None:
    with pytest.raises(ValueError, match="num_hidden_layers"):
        read_needs({}, 1)


def test_on_one_large_gpu_the_baseline_lives_beside() -> None:
    fit = fit_pair(EIGHT_B, SMALL_DRAFT, gpus(1, 139))
    assert (fit.arrangement, fit.tp) == (Arrangement.BESIDE, 1)
    assert fit.eagle_fraction is not None
    assert fit.baseline_fraction is not None
    assert fit.eagle_fraction < fit.baseline_fraction
    assert "measured one at a time" in fit.sentence


def test_a_second_equal_gpu_takes_the_baseline() -> None:
    fit = fit_pair(EIGHT_B, SMALL_DRAFT, gpus(2, 79))
    assert fit.arrangement == Arrangement.ELSEWHERE
    assert (fit.gpus, fit.baseline_gpus) == ((0,), (1,))
    assert fit.eagle_fraction is None


def test_a_gpu_of_another_kind_is_no_place_for_a_comparison() -> None:
    mixed = [*gpus(1, 79), Gpu(1, "A10", 23 * GIB, 22 * GIB, "1")]
    assert fit_pair(EIGHT_B, SMALL_DRAFT, mixed).arrangement == Arrangement.BESIDE


def test_seventy_billion_take_as_few_gpus_as_hold_them() -> None:
    fit = fit_pair(SEVENTY_B, SMALL_DRAFT, gpus(8, 79))
    assert (fit.tp, fit.arrangement) == (2, Arrangement.ELSEWHERE)


def test_kimi_k2_on_eight_gpus_takes_turns_with_its_baseline() -> None:
    fit = fit_pair(needs(KIMI_K2, 1030), needs(DRAFT, 2), gpus(8, 139), tp=8)
    assert (fit.arrangement, fit.tp) == (Arrangement.TAKING_TURNS, 8)
    assert fit.gpus == fit.baseline_gpus == tuple(range(8))
    assert "take turns" in fit.sentence


def test_kimi_k2_on_two_gpus_is_refused_with_its_number() -> None:
    with pytest.raises(DoesNotFitError, match="runs on 8 GPUs and 2 are here"):
        fit_pair(needs(KIMI_K2, 1030), None, gpus(2, 139), tp=8)


def test_a_pair_too_large_says_how_much_is_missing() -> None:
    with pytest.raises(DoesNotFitError, match=r"\d+ GiB on each of 1 GPUs and at most 22 GiB"):
        fit_pair(SEVENTY_B, SMALL_DRAFT, gpus(1, 22))


def test_without_a_gpu_the_other_ways_are_named() -> None:
    with pytest.raises(DoesNotFitError, match="--eagle-url"):
        fit_pair(EIGHT_B, SMALL_DRAFT, [])


def test_gpus_chosen_by_hand_hold_the_baseline_and_nothing_else() -> None:
    fit = fit_pair(EIGHT_B, SMALL_DRAFT, gpus(4, 79), baseline_gpus=(0,))
    assert fit.baseline_gpus == (0,)
    assert 0 not in fit.gpus


def test_a_gpu_that_is_not_there_cannot_be_chosen() -> None:
    with pytest.raises(DoesNotFitError, match="There is no GPU 7"):
        fit_pair(EIGHT_B, SMALL_DRAFT, gpus(2, 79), baseline_gpus=(7,))


def test_the_lanes_get_the_gpus_by_the_names_cuda_knows() -> None:
    here = [Gpu(0, "H100", 80 * GIB, 79 * GIB, "4"), Gpu(1, "H100", 80 * GIB, 79 * GIB, "6")]
    pair = find_pair("llama-3.1-8b")
    lanes = [describe(pair, Path("python"), "0.5.23", 30000) for describe in (describe_eagle, describe_baseline)]
    eagle, baseline = place_lanes(lanes[0], lanes[1], fit_pair(EIGHT_B, SMALL_DRAFT, here), here)
    assert build_environment(eagle)["CUDA_VISIBLE_DEVICES"] == "4"
    assert build_environment(baseline)["CUDA_VISIBLE_DEVICES"] == "6"
    assert "0.75" in build_command(eagle)


def test_beside_each_other_the_lanes_get_the_fitted_fractions() -> None:
    here = gpus(1, 139)
    pair = find_pair("llama-3.1-8b")
    lanes = [describe(pair, Path("python"), "0.5.23", 30000) for describe in (describe_eagle, describe_baseline)]
    fit = fit_pair(EIGHT_B, SMALL_DRAFT, here)
    eagle, baseline = place_lanes(lanes[0], lanes[1], fit, here)
    assert build_command(eagle)[-1] == f"{fit.eagle_fraction:.3f}"
    assert build_command(baseline)[-1] == f"{fit.baseline_fraction:.3f}"
    assert "0.75" not in build_command(eagle)


@given(free=st.floats(8, 200), target=st.floats(0.1, 150), draft=st.floats(0.01, 5), count=st.integers(1, 8))
def test_what_is_promised_always_fits(free: float, target: float, draft: float, count: int) -> None:
    big, small = needs(LLAMA_70B, target), needs(DRAFT, draft)
    here = gpus(count, free)
    try:
        fit = fit_pair(big, small, here)
    except DoesNotFitError:
        return
    room = here[0].free_bytes
    assert fit.tokens >= FEWEST_TOKENS
    assert big.attention_heads % fit.tp == 0
    per_lane = big.weight_bytes / fit.tp + FEWEST_TOKENS * big.kv_bytes_per_token(fit.tp)
    if fit.arrangement == Arrangement.BESIDE:
        assert fit.eagle_fraction is not None
        assert fit.baseline_fraction is not None
        eagle = fit.eagle_fraction * room
        baseline = fit.baseline_fraction * (room - eagle - OVERHEAD_BYTES)
        assert eagle + baseline + 2 * OVERHEAD_BYTES <= room * 1.001
        assert min(eagle, baseline) >= per_lane - 0.002 * room
    else:
        assert per_lane + OVERHEAD_BYTES <= room


def test_a_machine_without_cuda_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert read_gpus(Path(sys.executable)) == ()


def test_a_python_without_torch_cannot_list_gpus(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    with pytest.raises(RuntimeError, match="No module named"):
        read_gpus(python)
