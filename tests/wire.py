"""Reading and comparing what servers send, key for key and in order."""

from __future__ import annotations

import json
from typing import Any

VOLATILE = {"id", "created", "e2e_latency", "response_sent_to_client_ts"}


def split_events(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def without_volatile(value: Any) -> Any:
    """The value with what differs between any two runs blanked, and without EagleLens' extension."""
    if isinstance(value, dict):
        return {
            key: None if key in VOLATILE else without_volatile(item)
            for key, item in value.items()
            if key != "eaglelens"
        }
    if isinstance(value, list):
        return [without_volatile(item) for item in value]
    return value


def spell(value: Any) -> str:
    """JSON with keys in their order, so that a comparison sees the order too."""
    return json.dumps(without_volatile(value), indent=0)


def text_of(event: Any) -> str:
    if not isinstance(event, dict) or not event.get("choices"):
        return ""
    choice = event["choices"][0]
    return choice.get("text") or choice.get("delta", {}).get("content") or ""


def join_chunks(first: Any, second: Any) -> Any:
    """What SGLang sends for two engine outputs that it found waiting together."""
    joined = json.loads(json.dumps(first))
    joined.update({key: second[key] for key in ("usage",) if key in second})
    choice, other = joined["choices"][0], second["choices"][0]
    choice.update({key: other[key] for key in ("finish_reason", "matched_stop")})
    for key in ("text", "token_ids"):
        if key in choice:
            choice[key] += other[key]
    if "delta" in choice:
        choice["delta"]["content"] += other["delta"]["content"]
    return joined


def merge_like(events: list[Any], captured: list[Any]) -> list[Any]:
    """The events, joined where the capture has them joined: a busy SGLang merges the outputs of several steps."""
    rest = list(events)
    merged = []
    for event in captured:
        own = rest.pop(0)
        while rest and len(text_of(own)) < len(text_of(event)) and text_of(event).startswith(text_of(own)):
            own = join_chunks(own, rest.pop(0))
        merged.append(own)
    return merged + rest
