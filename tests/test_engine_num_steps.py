"""Requests with their own number of drafts, one after another on one engine: the same tokens, and honest caches."""

from __future__ import annotations

import pytest

from backend.embedded.engine import Engine, Generation
from backend.embedded.linear import Dtype
from tests.tiny_pair import tiny_engine

PROMPT = list(range(3, 23))
TOKENS = 40


def write(engine: Engine, prompt: list[int], num_steps: int | None) -> tuple[list[int], Generation]:
    """A greedy reply of TOKENS tokens, its caches handed back."""
    generation = engine.start(prompt, num_steps=num_steps)
    ids: list[int] = []
    while len(ids) < TOKENS:
        step = generation.step()
        assert len(step.proposed) <= (engine.num_steps if num_steps is None else num_steps)
        ids.extend(step.ids)
    generation.close()
    return ids[:TOKENS], generation


@pytest.mark.parametrize("dtype", ["int4", "bf16"])
def test_the_number_of_drafts_changes_no_token_whatever_ran_before(dtype: Dtype) -> None:
    engine = tiny_engine(dtype)
    replies = [write(engine, PROMPT, num_steps)[0] for num_steps in (None, 0, 5, 1, 0, 8, None)]
    assert all(reply == replies[0] for reply in replies)


def test_a_reply_without_the_draft_takes_no_prefix_from_one_with_it_and_leaves_it_there() -> None:
    engine = tiny_engine()
    write(engine, PROMPT, 3)
    assert write(engine, PROMPT, 0)[1].cached_tokens == 0
    assert write(engine, PROMPT, 5)[1].cached_tokens == len(PROMPT) - 2
    assert write(engine, PROMPT, 0)[1].cached_tokens == len(PROMPT) - 1


@pytest.mark.parametrize("num_steps", [0, 2, 5])
def test_a_second_turn_goes_on_from_a_first_one_with_other_drafts(num_steps: int) -> None:
    engine = tiny_engine("int4")
    first, _ = write(engine, PROMPT, 3)
    longer = [*PROMPT, *first, 7, 8, 9]
    continued, _ = write(engine, longer, num_steps)
    engine.flush_cache()
    assert continued == write(engine, longer, num_steps)[0]


def test_more_drafts_than_the_engine_takes_are_refused() -> None:
    engine = tiny_engine()
    with pytest.raises(ValueError, match=f"between 0 and {engine.max_num_steps}"):
        engine.start(PROMPT, num_steps=engine.max_num_steps + 1)
