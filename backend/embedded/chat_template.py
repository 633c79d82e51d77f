"""Renders a model's own chat template as Hugging Face does, in a sandbox: templates come with downloaded models."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class ChatTemplateError(ValueError):
    """The template refused these messages, or cannot be rendered with them."""


class GenerationBlock(Extension):
    """`{% generation %}` marks what the assistant said, for training; its content is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as a plain set

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller: Callable[[], str]) -> str:
        return caller()


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    special_tokens: Mapping[str, str],
    add_generation_prompt: bool = True,
    template_kwargs: Mapping[str, Any] | None = None,
) -> str:
    """The prompt text of `messages`, special tokens included: encode it without adding any.

    `special_tokens` and `template_kwargs` (a request's `chat_template_kwargs`) are what the template may name besides.
    Raises ChatTemplateError with the template's own words where it refuses.
    """
    names = {
        "tools": None,
        "documents": None,
        **special_tokens,
        **(template_kwargs or {}),
        "messages": messages,
        "add_generation_prompt": add_generation_prompt,
    }
    try:
        return _compile_template(template).render(names)
    except (jinja2.TemplateError, TypeError) as error:
        raise ChatTemplateError(f"The chat template refused the messages: {error}") from error


@lru_cache(maxsize=8)
def _compile_template(template: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _format_now
    return environment.from_string(template)


def _to_json(value: object, indent: int | None = None, ensure_ascii: bool = False, sort_keys: bool = False) -> str:
    # jinja2's own filter escapes for HTML, which a prompt must not be.
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _format_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
