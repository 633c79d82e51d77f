"""Choices that only this machine, as busy as it is now, can make."""

from __future__ import annotations

import statistics
import time

import psutil
import torch

from backend.embedded.target import Target

CONTEXT = 64
FORWARDS = 7


def choose_threads(target: Target) -> int:
    """The thread count that decodes one token fastest here and now.

    OpenMP threads that share a core with another process wait for each other at every barrier, so more threads
    than free cores can be ten times slower: the core count alone says little.
    """
    cores = psutil.cpu_count(logical=False) or 1
    candidates = [count for count in (1, 2, 4, 8, 16) if count <= cores]
    return min(candidates, key=lambda count: decode_seconds(target, count))


@torch.inference_mode()
def decode_seconds(target: Target, threads: int) -> float:
    """Median time of a one-row forward with its head, over a short context."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        cache = target.new_cache(CONTEXT + 1)
        row = torch.tensor([1])
        times = []
        for _ in range(FORWARDS):
            started = time.perf_counter()
            target.logits(target.forward(row, CONTEXT, cache, tap=False).last)
            times.append(time.perf_counter() - started)
        return statistics.median(times)
    finally:
        torch.set_num_threads(before)
