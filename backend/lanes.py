"""A lane: one server that answers, and what it says of itself. Pure; `backend.client.read_lane` asks the server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

# The /server_info fields that are shown beside a result, because they can move its numbers.
SHOWN_FACTS = (
    "version",
    "model_path",
    "served_model_name",
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "device",
    "tp_size",
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "page_size",
    "max_running_requests",
    "disable_radix_cache",
    "stream_interval",
    "stream_output",
    "incremental_streaming_output",
    "speculative_algorithm",
    "speculative_draft_model_path",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
    "speculative_adaptive",
    "launch_command",
    "eaglelens",
)
# As a flag in a command, and as a setting in what SGLang writes of itself.
_SECRET = re.compile(
    r"""(--[\w-]*(?:api-key|password|secret)[\s=]+|\b\w*(?:api_key|password|secret)(?:=|['"]:\s*))"""
    r"""(?!None\b|null\b)('[^']*'|"[^"]*"|[^\s,)]+)""",
    re.IGNORECASE,
)
_SIMULATION = re.compile(r"SIMULATE_ACC_LEN['\"\s:=]+(-?\d+(?:\.\d+)?)", re.IGNORECASE)


@dataclass(frozen=True)
class Lane:
    """A server under a label.

    `base_url` is the server's root, without `/v1`. `num_steps` is the longest run of drafts that one verify step can
    accept, 0 without speculation; it means nothing where `tells_speculation` is False: the server did not say whether
    it speculates, perhaps behind a router. `vocabulary[id]` is the text of a single token after other text, empty where
    it was not read. `ca_file` is a certificate bundle for a server with a certificate of its own. `warnings` are
    sentences for the screen. `workers` are the roots of the servers behind SGLang's router, empty where there is none:
    the router (sglang-router 0.3.2) passes /generate on and empties caches, the rest only a worker answers.
    """

    label: str
    base_url: str
    model: str
    version: str | None = None
    algorithm: str | None = None
    num_steps: int = 0
    topk: int = 1
    num_draft_tokens: int | None = None
    tells_speculation: bool = True
    stream_interval: int = 1
    max_model_len: int | None = None
    simulated_acceptance: float | None = None
    facts: Mapping[str, object] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    api_key: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    vocabulary: tuple[str, ...] = field(default=(), repr=False, compare=False)
    workers: tuple[str, ...] = ()

    @property
    def servers(self) -> tuple[Lane, ...]:
        """The servers themselves: each worker behind a router as a lane, else this lane. All serve the same."""
        return tuple(replace(self, base_url=worker) for worker in self.workers) or (self,)

    @property
    def is_speculative(self) -> bool:
        return self.num_steps > 0

    @property
    def is_embedded(self) -> bool:
        """Whether this is EagleLens' own engine, which takes a draft length with each request."""
        return "eaglelens" in self.facts

    @property
    def max_num_steps(self) -> int:
        """The most drafts a verify step that a request may ask of this lane; 0 where it takes no such wish."""
        own = self.facts.get("eaglelens")
        most = own.get("max_num_steps") if isinstance(own, Mapping) else None
        return most if isinstance(most, int) else 0

    @property
    def speaks_completions(self) -> bool:
        """Whether /v1/completions streams ids and counters (SGLang >= 0.5.19, no router); else /generate is used."""
        known = parse_version(self.version)
        return not self.workers and (known is None or known >= (0, 5, 19))

    @property
    def ids_are_deltas(self) -> bool:
        """Whether /generate sends only new ids with each chunk (two flags that few servers are started with)."""
        return bool(self.facts.get("stream_output") or self.facts.get("incremental_streaming_output"))

    @property
    def drafts_per_step(self) -> int:
        """What the engine proposes per verify step; a tree proposes more than it is deep."""
        return self.num_steps if self.num_draft_tokens is None else self.num_draft_tokens - 1


def parse_version(version: str | None) -> tuple[int, ...] | None:
    """The leading numbers of a version such as `0.5.6.post2`; None where there are none."""
    found = re.match(r"\d+(?:\.\d+)*", version or "")
    return tuple(int(part) for part in found.group().split(".")) if found else None


def lane_from_facts(
    label: str,
    base_url: str,
    facts: Mapping[str, object],
    models: Mapping[str, object],
    *,
    api_key: str | None = None,
    ca_file: str | None = None,
    workers: tuple[str, ...] = (),
) -> Lane:
    """Build a lane from the answers of `/server_info` and `/v1/models`; either may be empty."""
    algorithm = facts.get("speculative_algorithm")
    draft_tokens = _read_int(facts, "speculative_num_draft_tokens")
    num_steps = 0
    if algorithm:
        told = _read_int(facts, "speculative_num_steps")
        num_steps = told if told is not None else max(0, (draft_tokens or 1) - 1)
    card = _first_card(models)
    lane = Lane(
        label=label,
        base_url=normalise_url(base_url),
        model=str(card.get("id") or facts.get("served_model_name") or facts.get("model_path") or "default"),
        version=str(facts["version"]) if facts.get("version") else None,
        algorithm=str(algorithm) if algorithm else None,
        num_steps=num_steps,
        topk=_read_int(facts, "speculative_eagle_topk") or 1,
        num_draft_tokens=draft_tokens if algorithm else None,
        tells_speculation="speculative_algorithm" in facts,
        stream_interval=_read_int(facts, "stream_interval") or 1,
        max_model_len=_read_int(card, "max_model_len"),
        simulated_acceptance=_find_simulation(facts),
        facts={name: hide_secrets(facts[name]) for name in SHOWN_FACTS if facts.get(name) is not None},
        api_key=api_key,
        ca_file=ca_file,
        workers=workers,
    )
    return replace(lane, warnings=_list_warnings(lane, facts))


def list_workers(answer: Mapping[str, object]) -> tuple[str, ...]:
    """The roots of the healthy servers in a router's answer to /workers."""
    workers = answer.get("workers")
    entries = workers if isinstance(workers, list) else []
    healthy = (entry for entry in entries if isinstance(entry, Mapping) and entry.get("is_healthy", True))
    return tuple(normalise_url(str(entry["url"])) for entry in healthy if entry.get("url"))


def normalise_url(base_url: str) -> str:
    """The server's root: with a scheme, without `/v1` or a slash at the end."""
    url = base_url.strip().rstrip("/")
    url = url if "://" in url else f"http://{url}"
    return url.removesuffix("/v1").rstrip("/")


def hide_secrets(fact: object) -> object:
    """A command or a line of a log without the keys in it: facts are shown, recorded and shared."""
    return _SECRET.sub(r"\1***", fact) if isinstance(fact, str) else fact


def _list_warnings(lane: Lane, facts: Mapping[str, object]) -> tuple[str, ...]:
    found = []
    if not lane.tells_speculation:
        found.append(
            f"{lane.label} does not tell whether it speculates (its /server_info is missing, perhaps behind a router): "
            "tokens are coloured only at the end of a reply, and only where its counters prove who produced them."
        )
    if lane.simulated_acceptance is not None:
        found.append(
            f"{lane.label} simulates its acceptance (SGLANG_SIMULATE_ACC_LEN={lane.simulated_acceptance:g}): "
            "its numbers and its text are not real. Restart it without that variable."
        )
    if lane.stream_interval != 1:
        found.append(
            f"{lane.label} streams every {lane.stream_interval} tokens, which hides who produced them. "
            "Restart it with --stream-interval 1."
        )
    if facts.get("speculative_adaptive"):
        found.append(
            f"{lane.label} adapts its draft length as it goes, so token sources may not be provable. "
            "Restart it without --speculative-adaptive."
        )
    if facts.get("enable_mixed_chunk") and lane.is_speculative:
        found.append(
            f"{lane.label} mixes prefill into decoding, so token sources may not be provable. "
            "Restart it without --enable-mixed-chunk."
        )
    if lane.algorithm and lane.algorithm.upper() not in ("EAGLE3", "EAGLE"):
        found.append(f"{lane.label} speculates with {lane.algorithm}, not EAGLE-3.")
    if lane.workers:
        found.append(
            f"{lane.label} is SGLang's router in front of {len(lane.workers)} servers: what is said of them here is "
            f"said by {lane.workers[0]}, and one at a time answers."
            if len(lane.workers) > 1
            else f"{lane.label} is SGLang's router; what is said of the server is said by {lane.workers[0]} behind it."
        )
    elif not lane.speaks_completions:
        found.append(
            f"{lane.label} runs SGLang {lane.version}, read through its older /generate interface; "
            "0.5.19 or newer sends fewer bytes per token."
        )
    return tuple(found)


def _find_simulation(facts: Mapping[str, object]) -> float | None:
    """The simulated acceptance length, where any fact (a launch command, an environment) gives one above 0."""
    for name, value in facts.items():
        found = _SIMULATION.search(f"{name}={value}")
        if found and float(found.group(1)) > 0:
            return float(found.group(1))
    return None


def _first_card(models: Mapping[str, object]) -> Mapping[str, object]:
    cards = models.get("data")
    if isinstance(cards, list) and cards and isinstance(cards[0], Mapping):
        return cards[0]
    return {}


def _read_int(facts: Mapping[str, object], name: str) -> int | None:
    value = facts.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
