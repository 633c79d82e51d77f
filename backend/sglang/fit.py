"""Whether a pair fits the GPUs, how many it takes, and where its baseline can live. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import floor

from backend.sglang.gpus import Gpu
from backend.sglang.launch_spec import LaunchSpec
from backend.sglang.model_needs import ModelNeeds

GIB = 1024**3
# Per server and GPU, beside weights and KV cache: CUDA context, activations, graphs.
OVERHEAD_BYTES = 4 * GIB
# A lane that holds fewer tokens than this is of no use in a chat.
FEWEST_TOKENS = 16_384


class DoesNotFitError(ValueError):
    """The pair cannot run on these GPUs; the message has the sizes and what would help."""


class Arrangement(StrEnum):
    """Where the baseline lives."""

    ELSEWHERE = "on other GPUs"
    BESIDE = "beside it on the same GPUs"
    TAKING_TURNS = "taking turns on the same GPUs"


@dataclass(frozen=True)
class Fit:
    """How a pair runs here. `tp` GPUs per lane.

    The fractions are shares of the memory free when each server starts, the drafting one first and ready before
    the baseline starts; None leaves the pair's own. `tokens` is the least that the KV cache of a lane holds.
    """

    arrangement: Arrangement
    tp: int
    gpus: tuple[int, ...]
    baseline_gpus: tuple[int, ...]
    tokens: int
    eagle_fraction: float | None = None
    baseline_fraction: float | None = None

    @property
    def sentence(self) -> str:
        """For the screen."""
        where = {
            Arrangement.ELSEWHERE: f"the baseline runs on GPU {_join(self.baseline_gpus)}",
            Arrangement.BESIDE: "the baseline runs beside it on the same GPUs, so they are measured one at a time",
            Arrangement.TAKING_TURNS: "the baseline has no room beside it: the two take turns",
        }[self.arrangement]
        return f"It runs on GPU {_join(self.gpus)} (tp {self.tp}); {where}."


def fit_pair(
    target: ModelNeeds,
    draft: ModelNeeds | None,
    gpus: Sequence[Gpu],
    tp: int | None = None,
    baseline_gpus: tuple[int, ...] = (),
) -> Fit:
    """The best arrangement: other GPUs of the same kind, else beside, else taking turns; on as few GPUs as possible.

    `tp` is the pair's own number of GPUs and then the only one tried. `baseline_gpus` are chosen by hand: the
    baseline goes there and nowhere else. Raises DoesNotFitError.
    """
    chosen = {gpu.index for gpu in gpus}
    if not set(baseline_gpus) <= chosen:
        raise DoesNotFitError(
            f"There is no GPU {_join(sorted(set(baseline_gpus) - chosen))}: here are {_join(chosen)}."
        )
    own = [gpu for gpu in gpus if gpu.index not in baseline_gpus]
    other = [gpu for gpu in gpus if gpu.index in baseline_gpus]
    turns: Fit | None = None
    for count in _counts(target, len(own), tp):
        mine = _freest(own, count)
        if not _holds(_lane(target, draft, count), mine):
            continue
        rest = other or [gpu for gpu in own if gpu not in mine and gpu.name == mine[0].name]
        if len(rest) >= count and _holds(_lane(target, None, count), _freest(rest, count)):
            tokens = _tokens(target, draft, count, mine)
            return Fit(Arrangement.ELSEWHERE, count, _indices(mine), _indices(_freest(rest, count)), tokens)
        if other:
            continue
        beside = _fit_beside(target, draft, mine)
        if beside is not None:
            return beside
        tokens = _tokens(target, draft, count, mine)
        turns = turns or Fit(Arrangement.TAKING_TURNS, count, _indices(mine), _indices(mine), tokens)
    if turns is None:
        raise DoesNotFitError(_say_missing(target, draft, gpus, tp, baseline_gpus))
    return turns


def place_lanes(
    eagle: LaunchSpec, baseline: LaunchSpec, fit: Fit, gpus: Sequence[Gpu]
) -> tuple[LaunchSpec, LaunchSpec]:
    """Both lanes with the GPUs, the tp and the memory fractions of `fit`."""
    names = {gpu.index: gpu.device for gpu in gpus}
    return (
        replace(eagle, tp=fit.tp, gpus=tuple(names[i] for i in fit.gpus), mem_fraction=fit.eagle_fraction),
        replace(
            baseline, tp=fit.tp, gpus=tuple(names[i] for i in fit.baseline_gpus), mem_fraction=fit.baseline_fraction
        ),
    )


@dataclass(frozen=True)
class _Lane:
    """What one server needs of each of its GPUs, in bytes."""

    weights: int
    per_token: int

    @property
    def least(self) -> int:
        return self.weights + FEWEST_TOKENS * self.per_token


def _lane(target: ModelNeeds, draft: ModelNeeds | None, tp: int) -> _Lane:
    weights, per_token = -(-target.weight_bytes // tp), target.kv_bytes_per_token(tp)
    if draft is None:
        return _Lane(weights, per_token)
    # The draft's weights are counted whole on every GPU: an upper bound, and small.
    return _Lane(weights + draft.weight_bytes, per_token + draft.kv_bytes_per_token(tp))


def _fit_beside(target: ModelNeeds, draft: ModelNeeds | None, gpus: Sequence[Gpu]) -> Fit | None:
    tp = len(gpus)
    eagle, baseline = _lane(target, draft, tp), _lane(target, None, tp)
    free = min(gpu.free_bytes for gpu in gpus)
    spare = free - 2 * OVERHEAD_BYTES - eagle.least - baseline.least
    if spare < 0:
        return None
    for_eagle, for_baseline = eagle.least + spare // 2, baseline.least + spare // 2
    left = free - for_eagle - OVERHEAD_BYTES
    tokens = min(
        (for_eagle - eagle.weights) // max(1, eagle.per_token),
        (for_baseline - baseline.weights) // max(1, baseline.per_token),
    )
    return Fit(
        Arrangement.BESIDE,
        tp,
        _indices(gpus),
        _indices(gpus),
        tokens,
        _round_down(for_eagle / free),
        _round_down(for_baseline / left),
    )


def _counts(target: ModelNeeds, available: int, tp: int | None) -> Iterator[int]:
    """Numbers of GPUs to try, the fewest first: powers of two that share out the attention heads."""
    if tp is not None:
        if tp <= available:
            yield tp
        return
    count = 1
    while count <= available:
        if target.attention_heads % count == 0:
            yield count
        count *= 2


def _holds(lane: _Lane, gpus: Sequence[Gpu]) -> bool:
    return all(lane.least + OVERHEAD_BYTES <= gpu.free_bytes for gpu in gpus)


def _tokens(target: ModelNeeds, draft: ModelNeeds | None, tp: int, gpus: Sequence[Gpu]) -> int:
    lane = _lane(target, draft, tp)
    room = min(gpu.free_bytes for gpu in gpus) - OVERHEAD_BYTES - lane.weights
    return room // max(1, lane.per_token)


def _freest(gpus: Sequence[Gpu], count: int) -> list[Gpu]:
    return sorted(sorted(gpus, key=lambda gpu: -gpu.free_bytes)[:count], key=lambda gpu: gpu.index)


def _say_missing(
    target: ModelNeeds, draft: ModelNeeds | None, gpus: Sequence[Gpu], tp: int | None, baseline_gpus: tuple[int, ...]
) -> str:
    if not gpus:
        return "There is no GPU here. Attach to a server elsewhere with --eagle-url, or use the embedded engine."
    available = len(gpus) - len(baseline_gpus)
    if tp is not None and tp > available:
        return (
            f"This pair runs on {tp} GPUs and {available} are here for it: use a machine with {tp}, several nodes "
            "(--nnodes), or a smaller pair."
        )
    count = tp or max(_counts(target, available, None), default=1)
    need = _lane(target, draft, count).least + OVERHEAD_BYTES
    most = max(gpu.free_bytes for gpu in gpus)
    return (
        f"The pair needs {need / GIB:.0f} GiB on each of {count} GPUs and at most {most / GIB:.0f} GiB are free on "
        "one: end other programs there, use more GPUs, or choose a smaller pair."
    )


def _indices(gpus: Sequence[Gpu]) -> tuple[int, ...]:
    return tuple(gpu.index for gpu in gpus)


def _join(numbers: Sequence[int] | set[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


def _round_down(fraction: float) -> float:
    return floor(fraction * 1000) / 1000
