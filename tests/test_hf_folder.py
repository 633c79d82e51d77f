"""Targets in Hugging Face form: the engine's logits are those of transformers, for every family that it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from backend.embedded import hf_folder
from backend.embedded.linear import Dtype
from backend.embedded.loading import load_engine
from backend.embedded.target import build_target
from tests.tiny_folders import END_OF_TEXT, FAMILIES, VOCAB, Family, make_target, write_draft, write_target

pytest.importorskip("transformers")

IDS = torch.randint(VOCAB, (48,), generator=torch.Generator().manual_seed(3))


@torch.inference_mode()
def logits_of_engine(folder: Path, dtype: Dtype = "fp32", split: int = 32) -> Tensor:
    """[rows, vocab], read in two parts, so that the second one reads the cache of the first."""
    target = build_target(hf_folder.read_weights(folder), dtype)
    cache = target.new_cache(len(IDS))
    parts = ((0, IDS[:split]), (split, IDS[split:]))
    hidden = [target.forward(ids, start, cache, tap=False).last for start, ids in parts]
    return target.logits(torch.cat(hidden)).float()


@torch.inference_mode()
def logits_of_transformers(model: Any) -> Tensor:
    logits: Tensor = model(IDS[None]).logits[0].float()
    return logits


@pytest.mark.parametrize("family", FAMILIES)
def test_the_logits_are_those_of_transformers(tmp_path: Path, family: Family) -> None:
    model = make_target(family)
    ours, theirs = logits_of_engine(write_target(tmp_path, model)), logits_of_transformers(model)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert torch.equal(ours.argmax(-1), theirs.argmax(-1))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_comparison_would_notice_a_part_left_out(tmp_path: Path, family: Family) -> None:
    """What sets the families apart, taken away: norms of query and key, stretched positions, the head's own matrix."""
    model = make_target(family)
    theirs = logits_of_transformers(model)
    with torch.no_grad():
        if family == "qwen3":
            model.model.layers[0].self_attn.q_norm.weight.fill_(1)
        elif family == "llama-stretched":
            model.config.rope_parameters = {"rope_type": "default", "rope_theta": 10_000.0}
        else:
            model.lm_head.weight.mul_(1.01)
    ours = logits_of_engine(write_target(tmp_path, model))
    assert not torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_sharded_weights_are_read_from_all_files_of_the_index(tmp_path: Path) -> None:
    model = make_target("llama")
    write_target(tmp_path, model, shard_size="500KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    torch.testing.assert_close(logits_of_engine(tmp_path), logits_of_transformers(model), rtol=1e-4, atol=1e-4)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_target(tmp_path, make_target("llama"), shard_size="500KB")
    lost = max(tmp_path.glob("model-*.safetensors"))
    lost.unlink()
    with pytest.raises(FileNotFoundError, match=rf"incomplete: {lost.name} is missing"):
        hf_folder.read_weights(tmp_path)


def test_other_weight_files_beside_the_model_are_left_alone(tmp_path: Path) -> None:
    model = make_target("llama")
    write_target(tmp_path, model)
    (tmp_path / "consolidated.safetensors").write_bytes(b"not read")
    torch.testing.assert_close(logits_of_engine(tmp_path), logits_of_transformers(model), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_half_precision_weights_are_read_as_they_are(tmp_path: Path, family: Family, stored: torch.dtype) -> None:
    model = make_target(family).to(stored)
    ours = logits_of_engine(write_target(tmp_path, model))
    theirs = logits_of_transformers(type(model).from_pretrained(tmp_path, dtype=torch.float32))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert torch.equal(ours.argmax(-1), theirs.argmax(-1))


def test_bfloat16_arithmetic_stays_near_that_of_transformers(tmp_path: Path) -> None:
    model = make_target("qwen3").to(torch.bfloat16)
    ours = logits_of_engine(write_target(tmp_path, model), "bf16")
    theirs, exact = (
        logits_of_transformers(type(model).from_pretrained(tmp_path, dtype=dtype))
        for dtype in (torch.bfloat16, torch.float32)
    )
    assert (ours - exact).abs().mean() < 2 * (theirs - exact).abs().mean()


def test_tokenizer_template_and_end_come_with_the_folder(tmp_path: Path) -> None:
    text = hf_folder.read_text(write_target(tmp_path, make_target("llama")))
    assert text.tokenizer.encode("w3 w5").ids == [3, 5]
    assert "message['content']" in text.chat_template
    assert text.eos_ids == (END_OF_TEXT,)


@pytest.mark.parametrize(
    ("lost", "said"),
    [("tokenizer.json", "lacks tokenizer.json"), ("tokenizer_config.json", "lacks tokenizer_config.json")],
)
def test_a_folder_that_cannot_speak_is_refused_before_its_weights(tmp_path: Path, lost: str, said: str) -> None:
    model = make_target("llama")
    target, draft = write_target(tmp_path / "target", model), write_draft(tmp_path / "draft", model)
    (target / lost).unlink()
    (target / "model.safetensors").write_bytes(b"broken: opening this would raise something else")
    with pytest.raises(FileNotFoundError, match=said):
        load_engine(target=target, draft=draft, dtype="fp32", threads=1)


def test_a_model_without_a_chat_template_is_refused(tmp_path: Path) -> None:
    target = write_target(tmp_path, make_target("llama"))
    (target / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ValueError, match="no chat template; give an instruction-tuned model"):
        hf_folder.read_text(target)
