"""Command-line flags as a list of words, written `--flag value` or `--flag=value`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def read_flags(words: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Each flag with its first value, None where it has none."""
    for place, word in enumerate(words):
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            after = words[place + 1] if place + 1 < len(words) and not words[place + 1].startswith("--") else None
            yield name, value if equals else after


def drop_flags(words: Sequence[str], prefix: str) -> tuple[str, ...]:
    """The words without every flag whose name starts with `prefix`, and without those flags' values."""
    kept: list[str] = []
    dropping = False
    for word in words:
        if word.startswith("--"):
            dropping = word.startswith(prefix)
        if not dropping:
            kept.append(word)
    return tuple(kept)
