"""A conversation as prompt text by a model's own chat template, for servers that do not apply it for their clients."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from backend.embedded.chat_template import ChatTemplateError, render_chat
from backend.hub import Hub, HubError

FILES = ("tokenizer_config.json", "chat_template.jinja")
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


def render_prompt(model: str, messages: Sequence[Mapping[str, Any]], template_kwargs: Mapping[str, Any]) -> str:
    """The prompt text, special tokens included. `model` is a folder or a repository; two small files are read of it.

    Raises HubError where they cannot be had, ChatTemplateError where there is no template or it refuses.
    """
    template, special_tokens = _read_template(model)
    return render_chat(template, messages, special_tokens=special_tokens, template_kwargs=template_kwargs)


@lru_cache(maxsize=8)
def _read_template(model: str) -> tuple[str, Mapping[str, str]]:
    hub = Hub()
    folder = hub.download(hub.plan(model, patterns=FILES))
    settings = _read_settings(folder)
    separate = folder / "chat_template.jinja"
    template = separate.read_text(encoding="utf-8") if separate.is_file() else settings.get("chat_template")
    if isinstance(template, list):
        template = next((one["template"] for one in template if one.get("name") == "default"), None)
    if not template:
        raise ChatTemplateError(f"{model} has no chat template.")
    special = {name: _write_token(settings[name]) for name in SPECIAL_TOKENS if settings.get(name)}
    return str(template), special


def _read_settings(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    try:
        settings: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise HubError(f"{path} cannot be read ({error}).") from error
    return settings


def _write_token(token: object) -> str:
    return str(token["content"]) if isinstance(token, dict) else str(token)
