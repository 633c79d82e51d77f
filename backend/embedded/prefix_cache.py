"""Keys and values of finished requests, kept for requests that begin the same way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from backend.embedded.attention import KVCache


@dataclass(frozen=True)
class PrefixEntry:
    """The caches of one request. `ids` are the tokens whose rows the target's cache holds.

    `draft_length`: rows of the draft's cache that were computed from the target's taps.
    `draft_cache` is None for a request without speculation.
    """

    ids: tuple[int, ...]
    draft_length: int
    target_cache: KVCache
    draft_cache: KVCache | None

    def keep(self, ids: Sequence[int], draft_length: int) -> PrefixEntry:
        return replace(self, ids=tuple(ids), draft_length=draft_length)


class PrefixCache:
    """A few entries, the oldest dropped first. An entry in use is taken out, so no two requests share one."""

    def __init__(self, size: int = 4) -> None:
        self._size = size
        self._entries: list[PrefixEntry] = []

    def take(self, ids: Sequence[int], speculates: bool) -> PrefixEntry | None:
        """Remove and return the entry that shares most with `ids`; lanes with and without draft keep apart."""
        fitting = [entry for entry in self._entries if (entry.draft_cache is not None) == speculates]
        best = max(fitting, key=lambda entry: common_prefix(entry.ids, ids), default=None)
        if best is None:
            return None
        self._entries = [entry for entry in self._entries if entry is not best]
        return best

    def put(self, entry: PrefixEntry) -> None:
        self._entries = [*self._entries, entry][-self._size :]

    def clear(self) -> None:
        self._entries = []


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading ids agree."""
    for length, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return length
    return min(len(left), len(right))
