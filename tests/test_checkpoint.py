"""Draft checkpoints: what is written is what is read, and nothing is skipped in silence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from backend.embedded.checkpoint import load_checkpoint, save_checkpoint
from tests.tiny_pair import tiny_checkpoint, tiny_config, tiny_draft_config


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    checkpoint = tiny_checkpoint(tiny_config())
    save_checkpoint(tmp_path, checkpoint.config, checkpoint.tensors, checkpoint.target_ids)
    return tmp_path


def rewrite(folder: Path, **changes: torch.Tensor | None) -> None:
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in changes.items():
        tensors.pop(name, None)
        if tensor is not None:
            tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors")


def test_a_saved_checkpoint_is_read_back_in_bfloat16(folder: Path) -> None:
    written, read = tiny_checkpoint(tiny_config()), load_checkpoint(folder)
    assert read.config == tiny_draft_config(tiny_config())
    assert read.target_ids.tolist() == written.target_ids.tolist()
    for name, tensor in written.tensors.items():
        assert torch.equal(read.tensors[name], tensor.bfloat16())


def test_d2t_holds_offsets_and_t2d_the_vocabulary(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    ids = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
    assert tensors["t2d"].nonzero().squeeze(-1).tolist() == ids.tolist()


def test_older_names_are_understood(folder: Path) -> None:
    norm = load_file(folder / "model.safetensors")["fc_norm.0.weight"]
    rewrite(folder, **{"fc_norm.0.weight": None, "aux_norm_low.weight": norm})
    assert "fc_norm.0.weight" in load_checkpoint(folder).tensors


def test_an_unknown_tensor_is_refused_by_name(folder: Path) -> None:
    rewrite(folder, surprise=torch.zeros(3))
    with pytest.raises(ValueError, match="surprise"):
        load_checkpoint(folder)


def test_a_missing_tensor_is_refused_by_name(folder: Path) -> None:
    rewrite(folder, **{"fc_norm.1.weight": None})
    with pytest.raises(ValueError, match=r"missing.*fc_norm\.1\.weight"):
        load_checkpoint(folder)


def test_another_architecture_is_refused_by_name(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["LlamaForCausalLM"]}))
    with pytest.raises(ValueError, match="LlamaForCausalLMEagle3"):
        load_checkpoint(folder)


def test_a_folder_without_weights_says_which_file_lacks(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        load_checkpoint(tmp_path)


def test_a_pickled_checkpoint_is_read_as_tensors(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    read = load_checkpoint(folder)
    assert torch.equal(read.tensors["fc.weight"], tensors["fc.weight"])


def test_a_pickle_that_would_run_code_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"fc.weight": Path("not a tensor")}, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="holds more than tensors"):
        load_checkpoint(folder)


def test_tap_layers_are_one_more_than_the_ids_in_the_config(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    (folder / "config.json").write_text(json.dumps(config))
    assert load_checkpoint(folder).tap_layers == (1, 2, 3)
