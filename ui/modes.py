"""The modes of a chat: system prompt, limit and example prompts of each, kept as data under `assets/prompts/`."""

from __future__ import annotations

import json
from dataclasses import dataclass

from ui.resources import read_resource

NAMES = ("chat", "maths", "code")


@dataclass(frozen=True)
class Mode:
    """One mode. `max_tokens` is the limit it suggests, in completion tokens."""

    name: str
    system: str
    max_tokens: int
    examples: tuple[str, ...]


def load_modes() -> dict[str, Mode]:
    """All modes by the name they are shown under."""
    read = (json.loads(read_resource(f"prompts/{name}.json")) for name in NAMES)
    modes = (Mode(one["name"], one["system"], one["max_tokens"], tuple(one["examples"])) for one in read)
    return {mode.name: mode for mode in modes}
