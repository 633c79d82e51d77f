"""The command line of an SGLang server, for any version from 0.5.6 to 0.5.23."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from backend.catalog import Speculation
from backend.sglang.flags import drop_flags, read_flags
from backend.sglang.launch_spec import LaunchSpec

Version = tuple[int, ...]

OLDEST: Version = (0, 5, 6)
NEEDS_DRAFT = frozenset({"EAGLE3", "STANDALONE", "DFLASH"})
# SGLang lowers its limit to 48 when it speculates; the baseline gets the same, so that both lanes are alike.
RUNNING_REQUESTS = 48
# Server-wide averages are refreshed every so many decode batches; SGLang's 40 would pass short replies over.
LOG_INTERVAL = 10


class LaunchRefusedError(ValueError):
    """This server cannot work; the message says why and what to change."""


@dataclass(frozen=True)
class _Renamed:
    old: str
    new: str
    since: Version  # from here on `new`; looked up in the released wheels


@dataclass(frozen=True)
class _Removed:
    flag: str
    value: str | None  # None: the flag with any value
    since: Version
    instead: str


_RENAMED = (
    _Renamed("--cuda-graph-max-bs", "--cuda-graph-max-bs-decode", (0, 5, 16)),
    _Renamed("--cuda-graph-bs", "--cuda-graph-bs-decode", (0, 5, 16)),
    _Renamed("--stream-output", "--incremental-streaming-output", (0, 5, 12)),
)
_REMOVED = (
    _Removed("--enable-piecewise-cuda-graph", None, (0, 5, 16), "Leave it out."),
    _Removed("--attention-backend", "cutlass_mla", (0, 5, 20), "Choose another attention backend."),
    _Removed("--attention-backend", "dual_chunk_flash_attn", (0, 5, 20), "Choose another attention backend."),
    *(
        _Removed(f"--speculative-ngram-{name}", None, (0, 5, 20), "Leave it out.")
        for name in ("branch-length", "min-match-window-size", "max-match-window-size")
    ),
)
_NEW = {  # first released version known to have it
    "--incremental-streaming-output": (0, 5, 12),
    "--speculative-draft-attention-backend": (0, 5, 12),
}
_DFLASH_SINCE: Version = (0, 5, 12)
_CPU_SPECULATION_AFTER: Version = (0, 5, 12)
_MANAGED = {
    "--model-path": "--target",
    "--model": "--target",
    "--speculative-draft-model-path": "--draft",
    "--speculative-draft-model": "--draft",
    "--host": "the app's own options",
    "--port": "the app's own options",
}


def build_command(spec: LaunchSpec) -> tuple[str, ...]:
    """The words to run. Raises LaunchRefusedError where the server could not work, before anything starts."""
    version = parse_version(spec.version)
    _check(spec, version)
    own = [
        *("--model-path", spec.target, "--host", spec.host, "--port", str(spec.port)),
        *_speculative_words(spec),
        *_when("--tp-size", None if spec.tp == 1 else spec.tp),
        *_when("--dtype", spec.dtype),
        *(("--trust-remote-code",) if spec.trust_remote_code else ()),
        *_node_words(spec),
        *_unless_given("--max-running-requests", RUNNING_REQUESTS, spec.flags),
        *_unless_given("--decode-log-interval", LOG_INTERVAL, spec.flags),
    ]
    flags = drop_flags(spec.flags, "--mem-fraction-static") if spec.mem_fraction is not None else spec.flags
    further = translate_flags(flags, version)
    fraction = _when("--mem-fraction-static", None if spec.mem_fraction is None else f"{spec.mem_fraction:.3f}")
    return (str(spec.python), "-m", "sglang.launch_server", *own, *further, *fraction)


def build_environment(spec: LaunchSpec) -> dict[str, str]:
    """What the server needs in its environment beside what is there already."""
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(spec.gpus)} if spec.gpus else {}
    return {**spec.environment, **visible}


def show_command(spec: LaunchSpec) -> str:
    """The command with its environment, to be copied into a shell."""
    environment = [f"{name}={shlex.quote(value)}" for name, value in sorted(build_environment(spec).items())]
    return " ".join([*environment, shlex.join(build_command(spec))])


def parse_version(text: str) -> Version:
    """The leading numbers: `0.5.6.post2` is (0, 5, 6). Raises LaunchRefusedError when there are none."""
    numbers = tuple(int(part) for part in takewhile(str.isdigit, text.split(".")))[:3]
    if not numbers:
        raise LaunchRefusedError(f"{text!r} is not a version of SGLang.")
    return numbers


def translate_flags(flags: Sequence[str], version: Version) -> tuple[str, ...]:
    """Flags in the spelling of `version`. Raises LaunchRefusedError for one that it does not have."""
    for flag, value in read_flags(flags):
        _refuse_unavailable(flag, value, version)
    return tuple(_rename(word, version) for word in flags)


def _rename(word: str, version: Version) -> str:
    name, equals, value = word.partition("=")
    for change in _RENAMED:
        if name in (change.old, change.new):
            return (change.new if version >= change.since else change.old) + equals + value
    return word


def _refuse_unavailable(flag: str, value: str | None, version: Version) -> None:
    shown = ".".join(map(str, version))
    for removed in _REMOVED:
        if flag == removed.flag and removed.value in (None, value) and version >= removed.since:
            words = flag if removed.value is None else f"{flag} {value}"
            raise LaunchRefusedError(f"SGLang {shown} no longer has {words}. {removed.instead}")
    older_name = any(change.new == flag for change in _RENAMED)
    if flag in _NEW and version < _NEW[flag] and not older_name:
        needed = ".".join(map(str, _NEW[flag]))
        raise LaunchRefusedError(f"SGLang {shown} has no {flag}: use {needed} or newer, or leave it out.")


def _check(spec: LaunchSpec, version: Version) -> None:
    if version < OLDEST:
        raise LaunchRefusedError(f"SGLang {spec.version} is too old: EagleLens speaks 0.5.6 and newer.")
    for flag, _ in read_flags(spec.flags):
        if flag in _MANAGED:
            raise LaunchRefusedError(f"Set {flag} through {_MANAGED[flag]}, not as a further SGLang flag.")
    if spec.speculation is not None:
        _check_speculation(spec.speculation, spec, version)


def _check_speculation(speculation: Speculation, spec: LaunchSpec, version: Version) -> None:
    algorithm = speculation.algorithm
    if algorithm in NEEDS_DRAFT and not spec.draft:
        raise LaunchRefusedError(
            f"{algorithm} needs a draft model and none is given: without one SGLang would load the target in its "
            "place and crash. Give --draft, or choose a pair."
        )
    if algorithm == "DFLASH" and version < _DFLASH_SINCE:
        raise LaunchRefusedError(f"SGLang {spec.version} has no DFLASH: use 0.5.12 or newer.")
    on_cpu = ("--device", "cpu") in read_flags(spec.flags)
    if on_cpu and version <= _CPU_SPECULATION_AFTER:
        raise LaunchRefusedError(f"SGLang {spec.version} cannot speculate on a CPU: use 0.5.23.")


def _speculative_words(spec: LaunchSpec) -> list[str]:
    speculation = spec.speculation
    if speculation is None:
        return []
    return [
        *("--speculative-algorithm", speculation.algorithm),
        *_when("--speculative-draft-model-path", spec.draft),
        *_when("--speculative-num-steps", speculation.num_steps),
        *_when("--speculative-eagle-topk", speculation.topk),
        *_when("--speculative-num-draft-tokens", speculation.draft_tokens),
    ]


def _node_words(spec: LaunchSpec) -> list[str]:
    if spec.nodes is None:
        return []
    nodes = spec.nodes
    return ["--nnodes", str(nodes.count), "--node-rank", str(nodes.rank), "--dist-init-addr", nodes.address]


def _when(flag: str, value: object | None) -> list[str]:
    return [] if value is None else [flag, str(value)]


def _unless_given(flag: str, value: object, flags: Sequence[str]) -> list[str]:
    return [] if any(name == flag for name, _ in read_flags(flags)) else [flag, str(value)]
