"""What the embedded engine cannot run is refused by name, with nothing but the configs read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backend.embedded.loading import load_engine
from backend.embedded.model_name import name_model
from backend.embedded.pair_check import Config, check_pair

LLAMA: Config = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "hidden_act": "silu",
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
}
QWEN3: Config = {**LLAMA, "architectures": ["Qwen3ForCausalLM"], "use_sliding_window": False, "rope_scaling": None}
HEAD: Config = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": 4096,
    "vocab_size": 128256,
    "draft_vocab_size": 32000,
    "num_hidden_layers": 1,
}


@pytest.mark.parametrize("target", [LLAMA, QWEN3])
def test_a_dense_target_with_its_draft_passes(target: Config) -> None:
    check_pair("target", target, "draft", HEAD)
    check_pair("target", target, "draft", {**HEAD, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 15, 28]}})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 128}, "acme/big is a mixture of 128 experts"),
        ({"architectures": ["MixtralForCausalLM"], "num_local_experts": 8}, "mixture of 8 experts"),
        ({"architectures": ["GemmaForCausalLM"]}, "acme/big is a GemmaForCausalLM; .* LlamaForCausalLM and Qwen3"),
        ({"architectures": None}, "without a named architecture"),
        ({"use_sliding_window": True}, "sets use_sliding_window to True"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding window"),
        ({"quantization_config": {"quant_method": "fp8"}}, r"already quantised \(fp8\)"),
        ({"attention_bias": True}, "sets attention_bias to True"),
        ({"hidden_act": "gelu"}, "sets hidden_act to 'gelu'"),
        ({"partial_rotary_factor": 0.5}, "sets partial_rotary_factor to 0.5"),
        ({"rope_scaling": {"type": "yarn"}}, "by 'yarn'"),
        ({"rope_scaling": None, "rope_parameters": {"rope_type": "dynamic"}}, "by 'dynamic'"),
        ({"hidden_size": 2048}, "head reads hidden states of 4096 values and acme/big has 2048: they are not a pair"),
        ({"vocab_size": 151936}, "vocabulary of 128256 tokens and acme/big has 151936"),
        ({"num_hidden_layers": 6}, "layers 2, 3, 3, which acme/big with its 6 layers does not have"),
    ],
)
def test_a_target_that_cannot_be_run_is_refused_by_name(changes: Config, said: str) -> None:
    with pytest.raises(ValueError, match=said) as refused:
        check_pair("acme/big", {**LLAMA, **changes}, "head", HEAD)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architectures": ["LlamaForCausalLMEagle"]}, "acme/head is a LlamaForCausalLMEagle, a draft of EAGLE-1 or"),
        ({"architectures": ["LlamaForCausalLM"]}, "no EAGLE-3 draft"),
        ({"architectures": ["Qwen3ForCausalLMEagle3"]}, "no EAGLE-3 draft"),
        ({"target_hidden_size": 5120}, "4096 wide for a target of 5120"),
        ({"quantization_config": {"quant_method": "gptq"}}, "already quantised"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "by 'yarn'"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 15, 40]}}, "inputs of layers 2, 16, 41"),
    ],
)
def test_a_draft_that_cannot_be_run_is_refused_by_name(changes: Config, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_pair("target", LLAMA, "acme/head", {**HEAD, **changes})


@pytest.mark.parametrize(
    ("target", "head", "said"),
    [
        ({**LLAMA, "architectures": ["GemmaForCausalLM"]}, HEAD, "big is a GemmaForCausalLM"),
        (LLAMA, {**HEAD, "architectures": ["LlamaForCausalLMEagle"]}, "head is a LlamaForCausalLMEagle"),
        (LLAMA, {**HEAD, "vocab_size": 32000}, "not a pair"),
    ],
)
def test_the_engine_refuses_before_it_opens_any_weights(
    tmp_path: Path, target: Config, head: Config, said: str
) -> None:
    for name, config in (("big", target), ("head", head)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        (tmp_path / name / "model.safetensors").write_bytes(b"broken: opening this would raise something else")
    with pytest.raises(ValueError, match=said):
        load_engine(target=tmp_path / "big", draft=tmp_path / "head")


def test_a_config_that_is_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("<html>")
    with pytest.raises(ValueError, match=r"config\.json is no JSON"):
        load_engine(draft=tmp_path)


def test_a_snapshot_of_the_hub_goes_by_the_name_of_its_repository(tmp_path: Path) -> None:
    assert name_model(tmp_path / "models--acme--head-3" / "snapshots" / "0123abc") == "acme/head-3"
    assert name_model(tmp_path / "head") == "head"
