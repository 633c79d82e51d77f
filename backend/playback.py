"""A finished run as the steps it was made in, to be played and explained. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from backend.events import Run, Source, Token


@dataclass(frozen=True)
class Step:
    """What one forward of the target brought.

    `number` is 0 for the prefill, counts verify steps from 1, and is None where a merged chunk hides it. `arrived` is
    in seconds after sending. `proposed` are the drafted ids in order, None where the engine does not tell them.
    """

    number: int | None
    arrived: float
    tokens: tuple[Token, ...]
    proposed: tuple[int, ...] | None

    @property
    def accepted(self) -> int:
        """Drafted tokens that the target agreed with and that were kept."""
        return sum(token.source is Source.DRAFT for token in self.tokens)

    @property
    def own(self) -> Token | None:
        """The target's own token, which ends the step; None where the step was cut before it."""
        last = self.tokens[-1]
        return last if last.source in (Source.TARGET, Source.FIRST) else None


def list_steps(run: Run) -> tuple[Step, ...]:
    """The steps of a run in order of arrival; together they hold every token once."""
    steps: list[Step] = []
    index = 0
    for chunk in run.chunks:
        tokens = run.tokens[index : index + len(chunk.ids)]
        index += len(tokens)
        groups = list(_split(tokens))
        # What was proposed belongs to a whole chunk, so it says nothing of one of several steps in it.
        proposed = chunk.proposed if len(groups) == 1 else None
        steps += [Step(group[0].step, chunk.arrived, group, proposed) for group in groups]
    return tuple(steps)


def ran_at_once(runs: Sequence[Run]) -> bool:
    """Whether two runs overlapped in time, so that they may have slowed each other down."""
    if len(runs) < 2:
        return False
    spans = sorted((run.started_at, run.started_at + _last_arrival(run)) for run in runs)
    return spans[1][0] < spans[0][1]


def _split(tokens: Sequence[Token]) -> Iterator[tuple[Token, ...]]:
    for _, group in groupby(tokens, key=lambda token: token.step):
        yield tuple(group)


def _last_arrival(run: Run) -> float:
    return run.chunks[-1].arrived if run.chunks else 0.0
