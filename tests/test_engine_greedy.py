"""Greedy decoding with a draft gives, bit for bit, the tokens that the target gives alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from backend.embedded.engine import Engine
from backend.embedded.linear import Dtype
from backend.embedded.self_check import count_independent_rows
from tests.tiny_pair import tiny_engine

EXACT_DTYPES: tuple[Dtype, ...] = ("w8a8", "int4", "int8", "bf16")
PROMPT = [3, 14, 15, 9, 26, 5, 35, 8]


def complete(engine: Engine, prompt: list[int], num_steps: int, tokens: int) -> list[int]:
    generation = engine.start(prompt, num_steps=num_steps)
    ids: list[int] = []
    while len(ids) < tokens:
        ids.extend(generation.step().ids)
    generation.close()
    return ids[:tokens]


def next_logits(engine: Engine, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        cache = engine.target.new_cache(len(ids))
        return engine.target.logits(engine.target.forward(torch.tensor(ids), 0, cache).last[-1:])


@pytest.mark.parametrize("dtype", EXACT_DTYPES)
@pytest.mark.parametrize("num_steps", [1, 3, 5])
def test_a_draft_never_changes_greedy_tokens(dtype: Dtype, num_steps: int) -> None:
    engine = tiny_engine(dtype)
    alone = complete(engine, PROMPT, 0, 150)  # crosses two attention blocks
    assert complete(engine, PROMPT, num_steps, 150) == alone
    assert len(set(alone)) > 5


@pytest.mark.parametrize("dtype", EXACT_DTYPES)
def test_a_row_is_the_same_alone_and_beside_others(dtype: Dtype) -> None:
    assert count_independent_rows(tiny_engine(dtype).target, 6) == 6


def test_fp32_tokens_differ_at_most_at_a_near_tie() -> None:
    engine = tiny_engine("fp32")
    alone, drafted = complete(engine, PROMPT, 0, 120), complete(engine, PROMPT, 3, 120)
    first = next((place for place, pair in enumerate(zip(alone, drafted, strict=True)) if pair[0] != pair[1]), None)
    if first is None:
        return
    logits = next_logits(engine, PROMPT + alone[:first])[0]
    assert abs(logits[alone[first]] - logits[drafted[first]]) < 1e-4


@pytest.mark.parametrize("num_steps", [0, 3])
def test_a_reused_prefix_gives_the_tokens_of_a_fresh_one(num_steps: int) -> None:
    engine = tiny_engine("int4")
    answer = complete(engine, PROMPT, num_steps, 40)
    follow_up = [*PROMPT, *answer, 7, 7, 2]
    generation = engine.start(follow_up, num_steps=num_steps)
    reused = list(generation.step().ids)
    assert generation.cached_tokens >= len(PROMPT) + len(answer) - 3
    for _ in range(20):
        reused.extend(generation.step().ids)
    engine.flush_cache()
    fresh = complete(engine, follow_up, num_steps, len(reused))
    assert fresh == reused


def test_a_changed_ending_does_not_see_the_old_tokens() -> None:
    engine = tiny_engine("int4")
    complete(engine, PROMPT, 3, 30)
    changed = [*PROMPT[:-2], 40, 41]
    warm = complete(engine, changed, 3, 30)
    engine.flush_cache()
    assert complete(engine, changed, 3, 30) == warm


def test_requests_that_take_turns_do_not_disturb_each_other() -> None:
    engine = tiny_engine("int4")
    expected = [complete(engine, PROMPT, 3, 40), complete(engine, PROMPT[::-1], 3, 40)]
    engine.flush_cache()
    generations = [engine.start(PROMPT, num_steps=3), engine.start(PROMPT[::-1], num_steps=3)]
    collected: list[list[int]] = [[], []]
    while min(len(ids) for ids in collected) < 40:
        for ids, generation in zip(collected, generations, strict=True):
            ids.extend(generation.step().ids)
    assert [ids[:40] for ids in collected] == expected


def test_a_generation_stops_drafting_where_the_context_ends() -> None:
    engine = tiny_engine("int4", context=64)
    generation = engine.start(PROMPT * 7, num_steps=3)  # 56 of 64 positions
    ids: list[int] = []
    while len(ids) < 64 - 56:
        ids.extend(generation.step().ids)
    engine.flush_cache()
    assert ids[:8] == complete(engine, PROMPT * 7, 0, 8)


def test_an_empty_prompt_and_too_many_steps_are_refused() -> None:
    engine = tiny_engine("int4")
    with pytest.raises(ValueError, match="empty"):
        engine.start([])
    with pytest.raises(ValueError, match="num_steps must lie between 0 and 8"):
        engine.start(PROMPT, num_steps=9)


def test_the_count_of_independent_rows_ends_where_a_kernel_changes_with_their_number() -> None:
    target = tiny_engine("fp32").target
    exact = target.logits

    def change_with_the_number_of_rows(hidden: Tensor) -> Tensor:
        return exact(hidden) * (1.0 if len(hidden) < 5 else 1.001)

    target.logits = change_with_the_number_of_rows  # type: ignore[method-assign]
    assert count_independent_rows(target, 9) <= 4
