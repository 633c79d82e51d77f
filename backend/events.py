"""The typed values that flow from the backend to the UI. Values only: no I/O, no behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Source(StrEnum):
    """Who produced a token (DESIGN: source of a token)."""

    FIRST = "first"  # the prefill's token
    DRAFT = "draft"  # drafted by the head and accepted by the target
    TARGET = "target"  # the bonus or correction token that ends a verify step
    UNCERTAIN = "uncertain"  # a merged chunk hides its position


class Exactness(StrEnum):
    """How far the labels of a run can be trusted."""

    EXACT = "exact"
    PARTIAL = "partial"
    INCONSISTENT = "inconsistent"
    PROVISIONAL = "provisional"


@dataclass(frozen=True)
class Sampling:
    """How a reply is drawn. `temperature` 0 is greedy; `max_tokens` counts completion tokens."""

    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 256
    seed: int | None = None
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    num_steps: int | None = None  # embedded engine only: drafts per verify step, None = its default


@dataclass(frozen=True)
class Chunk:
    """One engine output as it came over the wire.

    `arrived` is in seconds after the request was sent, taken when the bytes arrived.
    `proposed` are the ids drafted for this step, accepted or not, where the engine tells (embedded only).
    """

    arrived: float
    ids: tuple[int, ...]
    text: str
    proposed: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Counters:
    """The engine's own totals for one request (DESIGN: V, A, R, N)."""

    verify_steps: int | None  # V; None: the server does not speculate or did not say
    accepted: int | None  # A, raw: not reduced by the cut
    proposed: int | None  # drafts offered
    completion_tokens: int  # N, kept
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    retractions: int = 0  # R
    histogram: tuple[int, ...] | None = None  # [k] = verify steps that accepted k drafts, raw
    accept_rate: float | None = None  # the engine's own figure: accepted / proposed
    accept_length: float | None = None  # the engine's own figure: completion_tokens / verify_steps


@dataclass(frozen=True)
class Token:
    """One kept token of a reply.

    `step` is 0 for the prefill and counts verify steps from 1; `place` counts from 0 inside the step.
    Both are None where a merged chunk hides them. `piece` joins with its neighbours to the server's text.
    """

    index: int
    id: int
    piece: str
    source: Source
    step: int | None
    place: int | None
    arrived: float


@dataclass(frozen=True)
class Request:
    """What is asked of a lane. `prompt_ids` come from the server's own chat template (`/tokenize`)."""

    rid: str
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    cache_salt: str | None = None


@dataclass(frozen=True)
class Run:
    """One streamed request, whole or as far as it came."""

    lane: str  # the lane's label
    request: Request
    started_at: float  # Unix time of sending
    chunks: tuple[Chunk, ...]
    tokens: tuple[Token, ...]
    counters: Counters | None
    exactness: Exactness
    num_steps: int  # of the lane; 0 without speculation
    finish_reason: str | None = None  # stop | length | abort; None: the stream did not reach its end
    error: str | None = None
    server: Mapping[str, object] = field(default_factory=dict)  # the facts of /server_info that were shown

    @property
    def text(self) -> str:
        return "".join(token.piece for token in self.tokens)


@dataclass(frozen=True)
class RunStarted:
    """The request is on its way."""

    lane: str
    request: Request
    started_at: float
    num_steps: int


@dataclass(frozen=True)
class TokensArrived:
    """New tokens of one chunk, with provisional labels. `first_index` is the index of `tokens[0]`."""

    first_index: int
    tokens: tuple[Token, ...]
    chunk: Chunk


@dataclass(frozen=True)
class RunEnded:
    """The stream is over: finished, stopped or failed (then `run.error` says what to do). Labels are final."""

    run: Run


Event = RunStarted | TokensArrived | RunEnded
