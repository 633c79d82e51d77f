"""Does this CPU treat a row the same whatever is computed beside it? Only then is a draft bit-exact."""

from __future__ import annotations

import torch

from backend.embedded.target import Target

PROMPT_ROWS = 60  # so that the checked rows cross a block of attention


@torch.inference_mode()
def count_independent_rows(target: Target, most: int) -> int:
    """How many rows, up to `most`, can run together so that each is bitwise what it is alone; at least 1.

    Kernels choose their instructions by the number of rows, so every number is tried: the count ends before the first
    that fails.
    """
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(target.config.vocab_size, (PROMPT_ROWS + most,), generator=generator).to(target.device)
    cache = target.new_cache(len(ids))
    target.forward(ids[:PROMPT_ROWS], 0, cache)
    alone = torch.cat(
        [
            target.logits(target.forward(ids[position : position + 1], position, cache).last)
            for position in range(PROMPT_ROWS, len(ids))
        ]
    )
    for rows in range(2, most + 1):
        together = target.forward(ids[PROMPT_ROWS : PROMPT_ROWS + rows], PROMPT_ROWS, cache)
        if not torch.equal(target.logits(together.last), alone[:rows]):
            return rows - 1
    return most
