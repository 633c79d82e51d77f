"""Prompts to compare on, of varying predictability, kept as data under `assets/prompts/`."""

from __future__ import annotations

import json
from dataclasses import dataclass

from ui.resources import read_resource


@dataclass(frozen=True)
class Preset:
    """One prompt. `expect` says in a sentence how well it can be drafted; `max_tokens` counts completion tokens."""

    name: str
    expect: str
    mode: str
    max_tokens: int
    prompt: str


def load_presets() -> tuple[Preset, ...]:
    """All presets, in the order they are shown."""
    return tuple(Preset(**one) for one in json.loads(read_resource("prompts/presets.json")))
