"""The engine on another device. torch's `meta` device stands for it: shapes without data, on every machine.

What it cannot show is a result; what it shows is that no step of the loop leaves a tensor behind on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from backend.embedded.device import CPU, choose_device_dtype, find_device, limit_context
from backend.embedded.draft import Draft
from backend.embedded.engine import Choice, Engine, Generation, Names, Step
from backend.embedded.loading import load_engine
from backend.embedded.prefix_cache import PrefixCache
from backend.embedded.sampling import Verdict
from backend.embedded.target import build_target
from tests.tiny_pair import VOCAB, tiny_checkpoint, tiny_config, tiny_text, tiny_weights

META = torch.device("meta")
COPIES = ("aten::copy_", "aten::_to_copy")


class OneDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Fails where an operation mixes devices: an accelerator would, `meta` itself often does not."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        leaves = tree_leaves((args, kwargs or {}))
        devices = {leaf.device for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim() > 0}
        assert len(devices) < 2 or func._schema.name in COPIES, f"{func} mixes {devices}"
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Scripted(Choice):
    """Accepts every draft: which ones a target would accept cannot be read from `meta`."""

    def verify(self, logits: Tensor, drafts: list[int]) -> Verdict:
        assert logits.device == META
        assert logits.shape == ((len(drafts) or 0) + 1, VOCAB)
        return Verdict((*drafts, 1), len(drafts))


class ScriptedDraft(Draft):
    """Proposes token 2 after the real work."""

    def propose(self, hidden: Tensor) -> tuple[int, Tensor]:
        logits = self.head(self._norm(hidden, self.final_norm))
        assert logits.device == META
        return 2, hidden


def generate_on_meta(*, draft_device: torch.device = META) -> list[Step]:
    config = tiny_config()
    target = build_target(tiny_weights(config), "fp32").to(META)
    draft = ScriptedDraft(tiny_checkpoint(config), "fp32", config.context_length, draft_device)
    engine = Engine(target, draft, tiny_text(VOCAB), Names("tiny", "tiny draft"), num_steps=3)
    choice = Scripted(0.0, 1.0, torch.Generator())
    generation = Generation(engine, list(range(60)), choice, 3, PrefixCache())
    with OneDevice():  # type: ignore[no-untyped-call]
        return [generation.step() for _ in range(4)]  # crosses a block of 64 positions


def test_prefill_drafting_and_verifying_stay_on_the_device() -> None:
    steps = generate_on_meta()
    assert [step.proposed for step in steps] == [(), (2, 2, 2), (2, 2, 2), (2, 2, 2)]
    assert sum(len(step.ids) for step in steps) == 13


def test_a_part_left_on_the_cpu_would_be_noticed() -> None:
    with pytest.raises((AssertionError, RuntimeError), match=r"mixes|expected device"):
        generate_on_meta(draft_device=CPU)


def test_a_moved_target_computes_what_it_did() -> None:
    target = build_target(tiny_weights(tiny_config()), "bf16")
    moved = target.to(CPU)
    ids = torch.arange(5)
    with torch.inference_mode():
        logits = [each.logits(each.forward(ids, 0, each.new_cache()).last) for each in (target, moved)]
    assert torch.equal(*logits)


def test_no_device_means_the_cpu_and_its_measured_dtype() -> None:
    assert find_device(None) == find_device("cpu") == CPU
    assert choose_device_dtype(CPU, None) is None
    assert choose_device_dtype(CPU, "int4") == "int4"
    assert limit_context(CPU, 131_072) == 131_072


def test_an_accelerator_takes_bf16_unless_told_and_a_context_that_fits_its_memory() -> None:
    assert choose_device_dtype(META, None) == "bf16"
    assert choose_device_dtype(META, "fp32") == "fp32"
    assert limit_context(META, 131_072) == 8192
    assert limit_context(META, 2048) == 2048


@pytest.mark.parametrize("name", ["nonsense", "cuda:99", "cuda:-7"])
def test_a_device_that_is_not_there_is_refused_before_anything_is_loaded(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}'.*--device"):
        load_engine(device=name, target=Path("never-read.gguf"))


def test_a_dtype_of_the_cpu_is_refused_elsewhere() -> None:
    with pytest.raises(ValueError, match="w8a8 runs on the CPU only: choose bf16 or fp32"):
        choose_device_dtype(META, "w8a8")
