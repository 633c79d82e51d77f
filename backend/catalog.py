"""Target and draft pairs that SGLang serves, how each is run, and what others have published about it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

NEAREST = 3  # names suggested for one that is not known


class UnknownPairError(LookupError):
    """No pair has this name; the message has the nearest ones."""


class PairNotOfferedError(LookupError):
    """The pair is known, and known not to work with SGLang; the message says why."""


@dataclass(frozen=True)
class Speculation:
    """How drafts are made, in SGLang's words. None leaves a number to SGLang, which takes all three or none."""

    algorithm: str  # EAGLE3; EAGLE: also a model's own prediction layers; STANDALONE; DFLASH
    num_steps: int | None = None
    topk: int | None = None
    draft_tokens: int | None = None


@dataclass(frozen=True)
class Pair:
    """A target and what drafts for it.

    `target` and `draft` are repositories of the hub or local folders; `draft` is None where the target drafts with
    layers of its own. `flags` go to both lanes, `speculative_flags` to the drafting one only, both as SGLang 0.5.23
    spells them. `tp` None: to be chosen for the machine. `sglang` is the version its source names. `source` says
    who confirmed these flags. `not_offered` is why the pair cannot be started.
    """

    name: str
    target: str
    draft: str | None
    speculation: Speculation
    source: str
    tp: int | None = None
    dtype: str | None = None
    trust_remote_code: bool = False
    flags: tuple[str, ...] = ()
    speculative_flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    sglang: str | None = None
    note: str | None = None
    not_offered: str | None = None


@dataclass(frozen=True)
class PublishedFigure:
    """What someone else measured with a pair, and where that stands. Never measured here.

    `configuration` is steps-topk-draft tokens. `speedup` is a ratio of tokens per second. `acceptance_length` is
    SGLang's completion tokens per verify step where the source is SGLang's, so it counts the prefill token.
    """

    pair: str
    benchmark: str
    source: str
    read: str  # ISO date on which the source was read
    engine: str
    configuration: str | None = None
    batch_size: int | None = None
    hardware: str | None = None
    baseline_tokens_per_second: float | None = None
    tokens_per_second: float | None = None
    speedup: float | None = None
    acceptance_length: float | None = None
    note: str | None = None


@cache
def load_pairs() -> tuple[Pair, ...]:
    """Every pair of `assets/pairs`, those not offered included, by name."""
    entries = [
        entry
        for file in (files("assets") / "pairs").iterdir()
        if file.name.endswith(".json")
        for entry in json.loads(file.read_text(encoding="utf-8"))
    ]
    return tuple(sorted((_read_pair(entry) for entry in entries), key=lambda pair: pair.name))


@cache
def load_published() -> tuple[PublishedFigure, ...]:
    """Every published figure, in the order of `assets/published/figures.json`."""
    text = (files("assets") / "published" / "figures.json").read_text(encoding="utf-8")
    return tuple(PublishedFigure(**entry) for entry in json.loads(text))


def list_offered() -> tuple[Pair, ...]:
    """The pairs that can be started."""
    return tuple(pair for pair in load_pairs() if pair.not_offered is None)


def find_pair(name: str) -> Pair:
    """The offered pair of this name, upper or lower case. Raises UnknownPairError or PairNotOfferedError."""
    pairs = {pair.name: pair for pair in load_pairs()}
    pair = pairs.get(name.lower())
    if pair is None:
        raise UnknownPairError(_say_unknown(name, tuple(pairs)))
    if pair.not_offered is not None:
        raise PairNotOfferedError(f"The pair {pair.name} is not offered: {pair.not_offered}")
    return pair


def find_published(pair: Pair) -> tuple[PublishedFigure, ...]:
    """What others published about this very target and draft."""
    return tuple(figure for figure in load_published() if figure.pair == pair.name)


def make_pair(
    target: str,
    draft: str | None,
    num_steps: int | None = None,
    topk: int | None = None,
    draft_tokens: int | None = None,
    algorithm: str = "EAGLE3",
) -> Pair:
    """A pair of one's own. A chain (topk 1) needs only `num_steps`: it drafts one token per step.

    Raises ValueError when some of the three numbers are given and the rest do not follow from them.
    """
    speculation = _complete(Speculation(algorithm, num_steps, topk, draft_tokens))
    return Pair(name="own", target=target, draft=draft, speculation=speculation, source="given by hand")


def _complete(speculation: Speculation) -> Speculation:
    steps, topk, tokens = speculation.num_steps, speculation.topk, speculation.draft_tokens
    if (steps, topk, tokens) == (None, None, None):
        return speculation
    if topk in (None, 1):
        steps = steps if steps is not None or tokens is None else tokens - 1
        if steps is not None and tokens in (None, steps + 1):
            return Speculation(speculation.algorithm, steps, 1, steps + 1)
    elif steps is not None and tokens is not None:
        return speculation
    raise ValueError(
        "SGLang needs steps, topk and draft tokens together, with draft tokens = steps + 1 when topk is 1: "
        "give --steps, --topk and --draft-tokens, or --steps alone."
    )


def _say_unknown(name: str, known: tuple[str, ...]) -> str:
    near = get_close_matches(name.lower(), known, n=NEAREST, cutoff=0.4)
    nearest = f" Did you mean {' or '.join(near)}?" if near else ""
    return (
        f"There is no pair {name}.{nearest} `--list-pairs` shows all of them, and --target with --draft runs your own."
    )


def _read_pair(entry: Mapping[str, Any]) -> Pair:
    return Pair(
        **{
            **entry,
            "speculation": Speculation(**entry["speculation"]),
            "flags": tuple(entry.get("flags", ())),
            "speculative_flags": tuple(entry.get("speculative_flags", ())),
        }
    )
