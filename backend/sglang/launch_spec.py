"""What one SGLang server is to be: everything its command and its environment follow from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from backend.catalog import Pair, Speculation
from backend.sglang.flags import drop_flags


@dataclass(frozen=True)
class Nodes:
    """A server that spans machines: how many, which one this is (0 serves HTTP), and where they meet (host:port)."""

    count: int
    rank: int
    address: str


@dataclass(frozen=True)
class LaunchSpec:
    """One server. `speculation` None makes it a baseline.

    `python` is the interpreter that has SGLang and `version` that SGLang's version. `gpus` are names for
    CUDA_VISIBLE_DEVICES; empty leaves every GPU visible. `mem_fraction` replaces what `flags` say: the share of the
    GPU memory free at start that weights and KV cache may take. `flags` are spelled as in SGLang 0.5.23 or in
    `version`.
    """

    label: str
    python: Path
    version: str
    target: str
    draft: str | None = None
    speculation: Speculation | None = None
    host: str = "127.0.0.1"
    port: int = 30000
    tp: int = 1
    gpus: tuple[str, ...] = ()
    nodes: Nodes | None = None
    dtype: str | None = None
    trust_remote_code: bool = False
    mem_fraction: float | None = None
    flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def base_url(self) -> str:
        """Where the server answers."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def describe_eagle(pair: Pair, python: Path, version: str, port: int, *further: str) -> LaunchSpec:
    """The drafting lane of a pair; `further` flags come last and so win."""
    return LaunchSpec(
        label="EAGLE-3" if pair.speculation.algorithm == "EAGLE3" else pair.speculation.algorithm,
        python=python,
        version=version,
        target=pair.target,
        draft=pair.draft,
        speculation=pair.speculation,
        port=port,
        tp=pair.tp or 1,
        dtype=pair.dtype,
        trust_remote_code=pair.trust_remote_code,
        flags=(*pair.flags, *pair.speculative_flags, *further),
        environment=pair.environment,
    )


def describe_baseline(pair: Pair, python: Path, version: str, port: int, *further: str) -> LaunchSpec:
    """The same target with the same flags, without speculation."""
    return LaunchSpec(
        label="Baseline",
        python=python,
        version=version,
        target=pair.target,
        port=port,
        tp=pair.tp or 1,
        dtype=pair.dtype,
        trust_remote_code=pair.trust_remote_code,
        flags=(*pair.flags, *drop_flags(further, "--speculative-")),
        environment=pair.environment,
    )
