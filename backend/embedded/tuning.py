"""Choices that only this machine, as busy as it is now, can make: dtype, threads, drafts a step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import psutil
import torch
from torch import Tensor

from backend.embedded.config import TargetConfig
from backend.embedded.draft import Draft
from backend.embedded.linear import Dtype, activation_dtype, fits, pack, restore
from backend.embedded.target import Target

CONTEXT = 64
FORWARDS = 7
CANDIDATES: tuple[Dtype, ...] = ("w8a8", "int4", "int8", "bf16")  # in order of preference
CLEARLY_FASTER = 0.85  # of the preferred one's time: noise should not change the choice from start to start
RING_BYTES = 64 << 20  # more than most last-level caches: weights come from memory in every real forward
MOST_TUNED_STEPS = 5
TYPICAL_ACCEPTANCE = (0.5, 0.28, 0.17, 0.1, 0.06)  # of the first j + 1 drafts, for a draft that does not tell its own


def choose_threads(target: Target) -> int:
    """The thread count that decodes one token fastest here and now.

    OpenMP threads that share a core with another process wait for each other at every barrier, so more threads
    than free cores can be ten times slower: the core count alone says little.
    """
    cores = psutil.cpu_count(logical=False) or 1
    candidates = [count for count in (1, 2, 4, 8, 16) if count <= cores]
    return min(candidates, key=lambda count: decode_seconds(target, count))


def choose_dtype(config: TargetConfig, num_steps: int, threads: int = 1) -> Dtype:
    """The dtype in which a layer of this size takes least time for the rows of a verify step, `num_steps + 1`.

    That is what the lane with the draft waits for; the baseline is the same arithmetic without it.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        seconds = {dtype: layer_seconds(config, dtype, num_steps + 1) for dtype in runnable_dtypes(config)}
    finally:
        torch.set_num_threads(before)
    return prefer(seconds)


def prefer(seconds: Mapping[Dtype, float]) -> Dtype:
    """The first candidate, unless a later one is clearly faster."""
    chosen = next(iter(seconds))
    for dtype, taken in seconds.items():
        if taken < CLEARLY_FASTER * seconds[chosen]:
            chosen = dtype
    return chosen


def runnable_dtypes(config: TargetConfig) -> list[Dtype]:
    """The candidates whose kernels this torch has for this CPU and that take the model's widths; bf16 always runs."""
    widths = (config.hidden_size, config.num_heads * config.head_dim, config.intermediate_size)
    return [dtype for dtype in CANDIDATES if all(fits(dtype, width) for width in widths) and has_kernel(dtype)]


def has_kernel(dtype: Dtype) -> bool:
    """Try the kernel on a small matrix: which ones there are depends on the CPU and on how torch was built."""
    try:
        pack(torch.ones(64, 64), dtype)(torch.ones(1, 64, dtype=activation_dtype(dtype)))
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    return True


@torch.inference_mode()
def layer_seconds(config: TargetConfig, dtype: Dtype, rows: int) -> float:
    """Time of one layer's four matrices over so many rows: the least of a few tries.

    As many equal layers as hold RING_BYTES, or the model has, run one after another, so that weights stream from memory
    as they do in a real forward.
    """
    width, dim = config.hidden_size, config.head_dim
    shapes = (
        ((config.num_heads + 2 * config.num_kv_heads) * dim, width),
        (width, config.num_heads * dim),
        (2 * config.intermediate_size, width),
        (width, config.intermediate_size),
    )
    generator = torch.Generator().manual_seed(0)
    packed = [pack(torch.randn(shape, generator=generator), dtype).tensors() for shape in shapes]
    size = sum(tensor.nbytes for tensors in packed for tensor in tensors.values())
    copies = min(config.num_layers, -(-RING_BYTES // size))
    ring = [
        restore({name: part.clone() for name, part in tensors.items()}) for _ in range(copies) for tensors in packed
    ]
    inputs = [torch.ones(rows, shape[1], dtype=activation_dtype(dtype)) for shape in shapes] * copies

    def run() -> Tensor:
        for linear, x in zip(ring, inputs, strict=True):
            y = linear(x)
        return y

    return min(_time(run)) / copies


def choose_num_steps(
    target: Target, draft: Draft, acceptance: Sequence[float] = (), most: int = MOST_TUNED_STEPS
) -> int:
    """The number of drafts a step that should decode fastest here, from 1 to `most`.

    acceptance: share of steps in which the first j + 1 drafts are all accepted, as the draft's maker measured it.
    """
    shares = tuple(acceptance) or TYPICAL_ACCEPTANCE
    most = min(len(shares), MOST_TUNED_STEPS, most)
    draft_seconds = draft_step_seconds(target, draft)
    speeds = {
        steps: expected_tokens(shares, steps) / (verify_seconds(target, steps + 1) + steps * draft_seconds)
        for steps in range(1, most + 1)
    }
    return max(speeds, key=lambda steps: speeds[steps])


def expected_tokens(shares: Sequence[float], steps: int) -> float:
    """Tokens of an average verify step: the target's own and every draft with all before it accepted."""
    return 1 + sum(shares[:steps])


def decode_seconds(target: Target, threads: int) -> float:
    """Median time of a one-row forward with its head, over a short context."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return statistics.median(_time_forwards(target, 1))
    finally:
        torch.set_num_threads(before)


def verify_seconds(target: Target, rows: int) -> float:
    """Least time of a forward of `rows` rows with their logits, over a short context."""
    return min(_time_forwards(target, rows))


@torch.inference_mode()
def draft_step_seconds(target: Target, draft: Draft) -> float:
    """Least time to draft one token and feed it back."""
    cache = draft.new_cache(CONTEXT + 1)
    embedded = target.embed(torch.tensor([1], device=target.device))
    hidden = torch.ones(1, draft.config.hidden_size, dtype=draft.activation, device=draft.device)

    def step() -> Tensor:
        draft.propose(hidden)
        return draft.forward(embedded, hidden, CONTEXT, cache)

    return min(_time(step))


@torch.inference_mode()
def _time_forwards(target: Target, rows: int) -> list[float]:
    cache = target.new_cache(CONTEXT + rows)
    ids = torch.ones(rows, dtype=torch.int64, device=target.device)
    return _time(lambda: target.logits(target.forward(ids, CONTEXT, cache, tap=False).last))


def _time(work: Callable[[], Tensor]) -> list[float]:
    """Seconds of FORWARDS runs. Their least is what the machine can do, their median what it does while busy."""
    times = []
    for _ in range(FORWARDS):
        started = time.perf_counter()
        work().flatten()[0].item()  # waits for an accelerator, whose work goes on behind the call
        times.append(time.perf_counter() - started)
    return times
