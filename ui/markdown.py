"""A reply as Markdown: raw HTML and images of a model stay text, code and formulas stay what they are."""

from __future__ import annotations

import re

LATEX_DELIMITERS: list[dict[str, str | bool]] = [
    {"left": "$$", "right": "$$", "display": True},
    {"left": "\\[", "right": "\\]", "display": True},
    {"left": "\\(", "right": "\\)", "display": False},
    {"left": "$", "right": "$", "display": False},
]

# A fenced block (the last one may still be open) or an inline code span.
CODE = re.compile(
    r"^ {0,3}(`{3,}|~{3,})[^\n]*\n.*?(?:^ {0,3}\1[`~]*[ \t]*$|\Z)|(?<!`)(`+)(?!`)[^\n]*?(?<!`)\2(?!`)",
    re.MULTILINE | re.DOTALL,
)
# As in Pandoc, $...$ is a formula only if its dollars touch it and no digit follows: "$3 and $2" are prices.
FORMULA = re.compile(r"\$\$.+?\$\$|\\\[.+?\\\]|\\\(.+?\\\)|\$(?=[^\s$])[^$\n]*?(?<=\S)\$(?!\d)", re.DOTALL)
ENTITY = re.compile(r"&(?=#?\w+;)")


def escape_markup(text: str) -> str:
    """Make the raw HTML and the images in `text` literal, outside code; the rest stays Markdown and LaTeX."""
    parts: list[str] = []
    end = 0
    for code in CODE.finditer(text):
        parts += [_escape_prose(text[end : code.start()]), code.group(0)]
        end = code.end()
    return "".join([*parts, _escape_prose(text[end:])])


def _escape_prose(text: str) -> str:
    """Escape text without code: a dollar that opens no formula is a currency sign."""
    parts: list[str] = []
    end = 0
    for formula in FORMULA.finditer(text):
        parts += [_escape_words(text[end : formula.start()]), _escape_html(formula.group(0))]
        end = formula.end()
    return "".join([*parts, _escape_words(text[end:])])


def _escape_words(text: str) -> str:
    return _escape_html(text).replace("$", "<span>&#36;</span>")


def _escape_html(text: str) -> str:
    return ENTITY.sub("&amp;", text).replace("<", "&lt;").replace("![", "&#33;[")
