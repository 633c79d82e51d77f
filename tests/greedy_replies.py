"""Greedy replies of a real SGLang and of the embedded engine, side by side."""

from __future__ import annotations

from dataclasses import dataclass

import httpx
import pytest
import torch

from backend.embedded.engine import Engine

TOKENS = 32
NUM_STEPS = 3
MOST_MOVED = 4  # histogram entries: one near-tie of the draft moves a step, and the next one with it
NEAR_TIE = 2e-3  # logits; the two engines sum in different orders


@dataclass(frozen=True)
class Reply:
    """histogram[k]: verify steps that accepted k drafts."""

    ids: list[int]
    histogram: list[int]


def ask_sglang(url: str, prompt: list[int]) -> Reply:
    body = {"input_ids": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": TOKENS}}
    answer = httpx.post(f"{url}/generate", json=body, timeout=300).raise_for_status().json()
    histogram = answer["meta_info"]["spec_correct_drafts_histogram"]  # ends at the most that a step accepted
    return Reply(answer["output_ids"], histogram + [0] * (NUM_STEPS + 1 - len(histogram)))


def ask_engine(engine: Engine, prompt: list[int]) -> Reply:
    engine.flush_cache()
    generation = engine.start(prompt, num_steps=NUM_STEPS)
    ids, histogram = list(generation.step().ids), [0] * (NUM_STEPS + 1)
    while len(ids) < TOKENS and not set(ids).intersection(engine.eos_ids):
        step = generation.step()
        ids.extend(step.ids)
        histogram[step.accepted] += 1
    end = next((place + 1 for place, token in enumerate(ids) if token in engine.eos_ids), len(ids))
    return Reply(ids[: min(end, TOKENS)], histogram)


def gap_between(engine: Engine, prompt: list[int], left: int, right: int) -> float:
    """How far apart the target's logits of two next tokens are."""
    with torch.inference_mode():
        cache = engine.target.new_cache(len(prompt))
        logits = engine.target.logits(engine.target.forward(torch.tensor(prompt), 0, cache).last[-1:])[0]
    return float((logits[left] - logits[right]).abs())


def compare_replies(engine: Engine, url: str, prompt: list[int], capsys: pytest.CaptureFixture[str]) -> Reply:
    """Assert equal tokens and acceptance, near-ties reported; returns the engine's reply."""
    theirs, ours = ask_sglang(url, prompt), ask_engine(engine, prompt)
    pairs = enumerate(zip(theirs.ids, ours.ids, strict=False))
    first = next((place for place, (left, right) in pairs if left != right), None)
    if first is not None:
        gap = gap_between(engine, prompt + ours.ids[:first], theirs.ids[first], ours.ids[first])
        with capsys.disabled():
            print(f"\nnear-tie at token {first}: logits {gap:.5f} apart")
        assert gap < NEAR_TIE
        return ours
    assert theirs.ids == ours.ids
    moved = sum(abs(left - right) for left, right in zip(theirs.histogram, ours.histogram, strict=True))
    if moved:
        with capsys.disabled():
            print(f"\nnear-tie in the draft: histograms {theirs.histogram} and {ours.histogram}")
    assert moved <= MOST_MOVED
    return ours
