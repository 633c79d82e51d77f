"""Where the model computes: the CPU, or any accelerator that this torch drives."""

from __future__ import annotations

import torch

from backend.embedded.linear import Dtype

CPU = torch.device("cpu")
DEVICE_DTYPES: tuple[Dtype, ...] = ("bf16", "fp32")  # the 8-bit and 4-bit kernels are torch's for CPUs
LONGEST_CONTEXT = 8192  # tokens: an accelerator's memory is taken at once, not page by page as it is written


def find_device(name: str | None) -> torch.device:
    """`cpu` for None. Raises ValueError, saying what to do, where this torch cannot put a tensor there."""
    if name is None:
        return CPU
    try:
        device = torch.device(name)
        return torch.zeros(1, device=device).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"This torch cannot compute on '{name}' ({reason}). Leave --device out for the CPU, or install a build "
            "of torch for that device; cuda, cuda:1, mps and xpu are such names."
        ) from error


def choose_device_dtype(device: torch.device, asked: Dtype | None) -> Dtype | None:
    """What to pack as: `asked`, or bf16 on an accelerator; None is for the CPU to measure. Raises ValueError."""
    if device == CPU:
        return asked
    if asked is not None and asked not in DEVICE_DTYPES:
        raise ValueError(f"{asked} runs on the CPU only: choose {' or '.join(DEVICE_DTYPES)} for '{device}'.")
    return asked or "bf16"


def limit_context(device: torch.device, context_length: int) -> int:
    """Tokens of prompt and reply that a request's cache is made for."""
    return context_length if device == CPU else min(context_length, LONGEST_CONTEXT)
