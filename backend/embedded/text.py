"""How a model's text becomes ids and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer


@dataclass(frozen=True)
class Text:
    """Tokenizer, chat template (Jinja), the ids that end a reply, and the strings a template may name."""

    tokenizer: Tokenizer
    chat_template: str
    eos_ids: tuple[int, ...]
    special_tokens: Mapping[str, str]


def write_text(path: Path, text: Text) -> None:
    """Keep it beside the packed weights: opening the GGUF for it takes seconds."""
    contents = {
        "tokenizer": json.loads(text.tokenizer.to_str()),
        "chat_template": text.chat_template,
        "eos_ids": list(text.eos_ids),
        "special_tokens": dict(text.special_tokens),
    }
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(contents))
    partial.replace(path)


def read_text(path: Path) -> Text | None:
    """What `write_text` wrote, or None where there is nothing or it is damaged (then it is made anew)."""
    try:
        contents = json.loads(path.read_text())
        return Text(
            Tokenizer.from_str(json.dumps(contents["tokenizer"])),
            contents["chat_template"],
            tuple(contents["eos_ids"]),
            contents["special_tokens"],
        )
    except (OSError, json.JSONDecodeError, KeyError):
        return None
