"""Does this CPU treat a row the same whatever is computed beside it? Only then is a draft bit-exact."""

from __future__ import annotations

import torch

from backend.embedded.target import Target

PROMPT_ROWS = 12


@torch.inference_mode()
def rows_are_independent(target: Target, most_rows: int) -> bool:
    """Compare the logits of rows run one at a time with the same rows run 2, 3, ... `most_rows` together, bitwise."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(target.config.vocab_size, (PROMPT_ROWS + most_rows,), generator=generator)
    cache = target.new_cache(len(ids))
    target.forward(ids[:PROMPT_ROWS], 0, cache)
    alone = torch.cat(
        [
            target.logits(target.forward(ids[position : position + 1], position, cache).last)
            for position in range(PROMPT_ROWS, len(ids))
        ]
    )
    for rows in range(2, most_rows + 1):
        together = target.forward(ids[PROMPT_ROWS : PROMPT_ROWS + rows], PROMPT_ROWS, cache)
        if not torch.equal(target.logits(together.last), alone[:rows]):
            return False
    return True
