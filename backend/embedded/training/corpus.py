"""Conversations that the target wrote itself, as token ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Conversation:
    """One templated conversation. `answer_start` is the index of the answer's first token in `ids`."""

    ids: np.ndarray  # [length] uint16 or uint32
    answer_start: int
    temperature: float  # of the answer; 0 is greedy


class Corpus(Sequence[Conversation]):
    """Many conversations end to end, as one `.npz` file.

    Arrays: `ids` (all ids), `offsets` (n + 1 starts), `response_start` (per conversation, relative), `temperature`.
    """

    def __init__(
        self, ids: np.ndarray, offsets: np.ndarray, response_start: np.ndarray, temperature: np.ndarray
    ) -> None:
        self._ids = ids
        self._offsets = offsets
        self._response_start = response_start
        self._temperature = temperature

    @classmethod
    def load(cls, path: Path) -> Corpus:
        with np.load(path) as file:
            return cls(file["ids"], file["offsets"], file["response_start"], file["temperature"])

    @classmethod
    def of(cls, conversations: Sequence[Conversation]) -> Corpus:
        lengths = [len(conversation.ids) for conversation in conversations]
        return cls(
            np.concatenate([conversation.ids for conversation in conversations]) if lengths else np.zeros(0, np.uint16),
            np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            np.array([conversation.answer_start for conversation in conversations], np.int32),
            np.array([conversation.temperature for conversation in conversations], np.float32),
        )

    def save(self, path: Path) -> None:
        """Written beside its place first, then moved: a broken run leaves the old file whole."""
        partial = path.with_name(path.name + ".partial.npz")
        np.savez_compressed(
            partial,
            ids=self._ids,
            offsets=self._offsets,
            response_start=self._response_start,
            temperature=self._temperature,
        )
        partial.replace(path)

    def __len__(self) -> int:
        return len(self._response_start)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        start, end = self._offsets[index], self._offsets[index + 1]
        return Conversation(self._ids[start:end], int(self._response_start[index]), float(self._temperature[index]))

    def __iter__(self) -> Iterator[Conversation]:
        return (self[index] for index in range(len(self)))

    @property
    def num_tokens(self) -> int:
        return len(self._ids)
