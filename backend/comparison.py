"""Two lanes compared: who runs when, what came of it, and what may have moved the numbers. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from backend import metrics
from backend.events import Run, Token
from backend.metrics import Spread

CONTEXT_TOKENS = 24  # tokens shown before the first differing one
AFTER_TOKENS = 8  # tokens shown after it
FINISHED = ("stop", "length")


@dataclass(frozen=True)
class Leg:
    """One run of a comparison: the lane's place (0 or 1) and the trial it belongs to, None for the warm-up."""

    side: int
    trial: int | None


@dataclass(frozen=True)
class Trial:
    """One run of each lane, on the same prompt."""

    left: Run
    right: Run

    @property
    def is_complete(self) -> bool:
        """Whether both replies came to their own end."""
        return all(run.error is None and run.finish_reason in FINISHED for run in (self.left, self.right))


@dataclass(frozen=True)
class Difference:
    """Where two replies part. `left` and `right` are the tokens there, None where a reply had ended before.

    `before` is the shared text ahead of it, `*_after` what each reply wrote behind it; all three are excerpts.
    """

    trial: int
    index: int
    before: str
    left: Token | None
    right: Token | None
    left_after: str
    right_after: str


@dataclass(frozen=True)
class Verdict:
    """What a comparison found, over its complete `trials`; None where a figure cannot be had.

    `speedup` is the left lane's decode speed over the right lane's, trial by trial; `saved_seconds` how much longer
    the left reply would have taken at the right lane's speed. `typical` is the place, among `trials`, of the one whose
    speedup is the median (the lower of the two middle ones). `same` says whether the replies of every trial have the
    same tokens, None where a server did not tell the ids.
    """

    trials: tuple[Trial, ...]
    typical: int | None
    speedup: Spread | None
    saved_seconds: Spread | None
    speeds: tuple[Spread | None, Spread | None]
    ttfts: tuple[Spread | None, Spread | None]
    acceptance_lengths: tuple[Spread | None, Spread | None]
    acceptance_rates: tuple[Spread | None, Spread | None]
    same: bool | None
    difference: Difference | None


def plan_fair(trials: int) -> tuple[Leg, ...]:
    """The legs of a fair comparison: a warm-up of each lane, then the trials, whose order alternates."""
    legs = [Leg(0, None), Leg(1, None)]
    for trial in range(trials):
        order = (0, 1) if trial % 2 == 0 else (1, 0)
        legs += [Leg(side, trial) for side in order]
    return tuple(legs)


def speedup_of(trial: Trial) -> float | None:
    """Decode speed of the left run / decode speed of the right one; None where either has none."""
    return metrics.speedup(metrics.decode_speed(trial.left.tokens), metrics.decode_speed(trial.right.tokens))


def saved_seconds_of(trial: Trial) -> float | None:
    """How much longer the left reply would have taken to decode at the right lane's speed, in seconds."""
    return metrics.saved_seconds(trial.left.tokens, metrics.decode_speed(trial.right.tokens))


def judge(trials: Sequence[Trial], *, keep_speedup: bool = True) -> Verdict:
    """The verdict over all complete trials. `keep_speedup` is False where the lanes disturbed each other."""
    complete = [trial for trial in trials if trial.is_complete]
    speedups = [speedup_of(trial) for trial in complete]
    differences = [found for at, trial in enumerate(complete) if (found := find_difference(trial, at)) is not None]

    def over(measure: Callable[[Run], float | None]) -> tuple[Spread | None, Spread | None]:
        return (
            metrics.summarise([measure(trial.left) for trial in complete]),
            metrics.summarise([measure(trial.right) for trial in complete]),
        )

    return Verdict(
        trials=tuple(complete),
        typical=_find_typical(speedups),
        speedup=metrics.summarise(speedups) if keep_speedup else None,
        saved_seconds=metrics.summarise([saved_seconds_of(trial) for trial in complete]) if keep_speedup else None,
        speeds=over(lambda run: metrics.decode_speed(run.tokens)),
        ttfts=over(lambda run: metrics.ttft(run.tokens)),
        acceptance_lengths=over(lambda run: metrics.acceptance_length(run.counters)),
        acceptance_rates=over(lambda run: metrics.acceptance_rate(run.counters, run.num_steps)),
        same=not differences if complete and all(map(_tells_ids, complete)) else None,
        difference=differences[0] if differences else None,
    )


def _tells_ids(trial: Trial) -> bool:
    return all(token.id >= 0 for run in (trial.left, trial.right) for token in run.tokens)


def _find_typical(speedups: Sequence[float | None]) -> int | None:
    ranked = sorted((value, at) for at, value in enumerate(speedups) if value is not None)
    if ranked:
        return ranked[(len(ranked) - 1) // 2][1]
    return 0 if speedups else None


def find_difference(trial: Trial, number: int = 0) -> Difference | None:
    """The first token at which the two replies of trial `number` part, by id; None where they are identical."""
    left, right = trial.left.tokens, trial.right.tokens
    at = metrics.first_difference([token.id for token in left], [token.id for token in right])
    if at is None:
        return None
    return Difference(
        trial=number,
        index=at,
        before=_join(left[max(0, at - CONTEXT_TOKENS) : at]),
        left=left[at] if at < len(left) else None,
        right=right[at] if at < len(right) else None,
        left_after=_join(left[at + 1 : at + 1 + AFTER_TOKENS]),
        right_after=_join(right[at + 1 : at + 1 + AFTER_TOKENS]),
    )


def _join(tokens: Sequence[Token]) -> str:
    return "".join(token.piece for token in tokens)


def explain_difference(trial: Trial) -> str:
    """Why two correct lanes may write different tokens, for these two runs; one or two sentences."""
    if trial.left.request.sampling.temperature > 0:
        return "Both replies are sampled: they are two draws from the same distribution and need not agree."
    if all(_is_bit_exact(run.server) for run in (trial.left, trial.right)):
        return (
            "At temperature 0 this engine computes both lanes bit for bit the same way, so this should not happen: "
            "please report it with the recording."
        )
    dtypes = sorted({str(run.server["dtype"]) for run in (trial.left, trial.right) if run.server.get("dtype")})
    rounding = f"{' and '.join(dtypes)} arithmetic" if dtypes else "floating-point arithmetic"
    return (
        f"A verify step computes several tokens in one forward, and {rounding} rounds differently with the "
        "number of tokens; where two candidates are nearly as likely, either may win, and the texts go separate ways."
    )


def _is_bit_exact(facts: Mapping[str, object]) -> bool:
    own = facts.get("eaglelens")
    return isinstance(own, Mapping) and own.get("bit_exact") is True


class Weight(StrEnum):
    """What a difference between two lanes means for their comparison."""

    WARNING = "warning"  # it can move the numbers, and speculation does not ask for it
    NOTE = "note"  # it can move the numbers a little, but speculation may force it


@dataclass(frozen=True)
class LaneDifference:
    """One setting in which the lanes differ; a value is None where a server does not tell."""

    name: str
    left: object
    right: object
    weight: Weight


# Settings that the same target with and without a draft have in common.
SAME_FACTS = (
    "version",
    "model_path",
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "device",
    "tp_size",
    "disable_radix_cache",
    "stream_interval",
)
# Settings that SGLang itself changes for speculation, or for which a draft may have no other choice.
FORCED_FACTS = (
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "page_size",
    "max_running_requests",
)


def compare_facts(left: Mapping[str, object], right: Mapping[str, object]) -> tuple[LaneDifference, ...]:
    """Where two lanes' `/server_info` differ in what matters beside speculation. What neither tells is not listed."""
    found = []
    for names, weight in ((SAME_FACTS, Weight.WARNING), (FORCED_FACTS, Weight.NOTE)):
        for name in names:
            one, other = _read_fact(left, name), _read_fact(right, name)
            # A fact that only one server tells is no known difference.
            if one is not None and other is not None and one != other:
                found.append(LaneDifference(name, left.get(name), right.get(name), weight))
    return tuple(found)


def _read_fact(facts: Mapping[str, object], name: str) -> object:
    value = facts.get(name)
    # The same model may lie in different folders.
    return PurePosixPath(value.rstrip("/")).name if name == "model_path" and isinstance(value, str) else value


def share_hardware(left_url: str, right_url: str) -> bool:
    """Whether two servers must be taken to sit on the same machine, and so to disturb each other: their hosts agree."""
    return _read_host(left_url) == _read_host(right_url)


def _read_host(url: str) -> str:
    host = urlsplit(url).hostname or ""
    return "localhost" if host in ("127.0.0.1", "::1", "0.0.0.0") else host


def hash_prompt(ids: Sequence[int]) -> str:
    """A name for prompt ids: the first 16 hex digits of SHA-256 over the ids in decimal, joined by commas."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()[:16]
