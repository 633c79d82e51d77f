"""When a reply ends, and where: SGLang's order of precedence, as pure functions over token ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class StopRule:
    """What ends a reply. `token_ids` holds the EOS ids too, unless the request ignores them."""

    max_new_tokens: int
    strings: tuple[str, ...] = ()
    token_ids: frozenset[int] = frozenset()

    @property
    def window(self) -> int:
        """Tokens that surely hold a stop string: a token that shows at all brings at least one byte."""
        return max((len(string.encode()) for string in self.strings), default=0) + 1


@dataclass(frozen=True)
class Finish:
    """The end of a reply: `kept` of its tokens count; `matched` is the stop string or stop token that was met."""

    kind: str  # stop | length | abort
    kept: int
    matched: str | int | None = None


def cut_at_stop(ids: Sequence[int], new: int, rule: StopRule, decode: Decode) -> Finish | None:
    """Whether the reply `ids`, of which the last `new` came with this step, is over, and how many of them are kept.

    A stop string beats a stop token, which beats the length; whatever is met lies within `max_new_tokens`, else the
    length ends the reply. The string or token that was met is kept among the ids (its text is the detokenizer's
    business). Precedence as in SGLang 0.5.23, `Req.update_finish_state`.
    """
    found = _find_stop_string(ids, new, rule, decode) or _find_stop_token(ids, new, rule)
    if found is not None and found.kept <= rule.max_new_tokens:
        return found
    if len(ids) >= rule.max_new_tokens:
        return Finish("length", rule.max_new_tokens)
    return None


def may_be_stopping(ids: Sequence[int], rule: StopRule, decode: Decode) -> bool:
    """Whether the end of the reply could be the start of a stop string, so that its text must wait."""
    if not rule.strings:
        return False
    tail = decode(ids[-rule.window :])
    return any(
        tail.endswith(string[:length])
        for string in rule.strings
        for length in range(1, min(len(tail), len(string)) + 1)
    )


def _find_stop_string(ids: Sequence[int], new: int, rule: StopRule, decode: Decode) -> Finish | None:
    if not rule.strings:
        return None
    start = max(0, len(ids) - rule.window - max(new - 1, 0))
    whole = decode(ids[start:])
    for string in rule.strings:
        if string not in whole:
            continue
        for kept in range(max(start, len(ids) - new) + 1, len(ids)):
            if string in decode(ids[start:kept]):
                return Finish("stop", kept, string)
        return Finish("stop", len(ids), string)
    return None


def _find_stop_token(ids: Sequence[int], new: int, rule: StopRule) -> Finish | None:
    for index in range(len(ids) - new, len(ids)):
        if ids[index] in rule.token_ids:
            return Finish("stop", index + 1, ids[index])
    return None
