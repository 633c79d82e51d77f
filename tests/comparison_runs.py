"""Runs made by hand, for tests of what is computed from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from backend.events import Chunk, Counters, Exactness, Request, Run, Sampling, Source, Token


def make_run(
    lane: str,
    ids: Sequence[int],
    *,
    speed: float = 10.0,
    first: float = 0.1,
    temperature: float = 0.0,
    finish_reason: str | None = "length",
    counters: Counters | None = None,
    num_steps: int = 0,
    server: Mapping[str, object] | None = None,
    error: str | None = None,
) -> Run:
    """A run of one token per chunk, the first after `first` seconds and then `speed` a second; token 7 is `" w7"`."""
    times = [first + index / speed for index in range(len(ids))]
    tokens = tuple(
        Token(index, id, f" w{id}", Source.TARGET if index else Source.FIRST, index, 0, time)
        for index, (id, time) in enumerate(zip(ids, times, strict=True))
    )
    return Run(
        lane=lane,
        request=Request(f"rid-{lane}", (1, 2, 3), Sampling(temperature=temperature)),
        started_at=1_790_000_000.0,
        chunks=tuple(Chunk(token.arrived, (token.id,), token.piece) for token in tokens),
        tokens=tokens,
        counters=counters,
        exactness=Exactness.EXACT,
        num_steps=num_steps,
        finish_reason=finish_reason,
        error=error,
        server=server or {},
    )
