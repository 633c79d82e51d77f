"""How busy a server is and what it averages over all its requests, as it tells itself. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ServerLoad:
    """One look at a server; None where it does not tell.

    `running` and `queued` count requests. `acceptance_length` is the server's own mean of (A + V) / V over its
    requests since its cache was last flushed, `throughput` its tokens per second over all requests; it refreshes both
    every few decode batches only. None of them is about one reply.
    """

    running: int | None = None
    queued: int | None = None
    acceptance_length: float | None = None
    throughput: float | None = None


def load_from_answers(loads: Mapping[str, object], facts: Mapping[str, object]) -> ServerLoad:
    """Read the answers of `/v1/loads` and `/server_info`; either may be empty. Data-parallel ranks are summed."""
    ranks = _list_objects(loads.get("loads"))
    states = _list_objects(facts.get("internal_states"))
    lengths = _list_numbers(states, "avg_spec_accept_length")
    speeds = _list_numbers(states, "last_gen_throughput") or _list_numbers(ranks, "gen_throughput")
    return ServerLoad(
        running=_sum_counts(ranks, "num_running_reqs"),
        queued=_sum_counts(ranks, "num_waiting_reqs"),
        acceptance_length=sum(lengths) / len(lengths) if lengths else None,
        throughput=sum(speeds) if speeds else None,
    )


def _sum_counts(ranks: list[Mapping[str, object]], name: str) -> int | None:
    counts = _list_numbers(ranks, name)
    return int(sum(counts)) if counts else None


def _list_objects(value: object) -> list[Mapping[str, object]]:
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []


def _list_numbers(entries: list[Mapping[str, object]], name: str) -> list[float]:
    found = [entry.get(name) for entry in entries]
    return [float(value) for value in found if isinstance(value, (int, float)) and not isinstance(value, bool)]
