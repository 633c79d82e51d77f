"""SGLang's protocol as values: request bodies out, chunks in. Pure; SGLANG's wire facts by version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backend.events import Counters, Request
from backend.lanes import Lane

JsonObject = Mapping[str, Any]


@dataclass(frozen=True)
class Delta:
    """What one chunk of a stream adds. `ids` is None where the server sent no token ids.

    `completion_tokens` and `prompt_tokens` are running totals. `spec` holds the engine's counters by SGLang's names.
    """

    ids: tuple[int, ...] | None = ()
    text: str = ""
    proposed: tuple[int, ...] | None = None
    finish_reason: str | None = None
    completion_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    retractions: int | None = None
    spec: JsonObject | None = None
    accept_lengths: tuple[int, ...] | None = None


def completions_body(lane: Lane, request: Request) -> dict[str, Any]:
    """The arguments of `openai`'s `completions.create`; every sampling value is sent, for the defaults differ."""
    sampling = request.sampling
    extra: dict[str, Any] = {
        "return_token_ids": True,
        "return_spec_tokens_details": True,
        "rid": request.rid,
        "ignore_eos": sampling.ignore_eos,
        "stop_token_ids": list(sampling.stop_token_ids),
    }
    if request.cache_salt is not None:
        extra["cache_salt"] = request.cache_salt
    if lane.is_embedded and sampling.num_steps is not None:
        extra["eaglelens"] = {"num_steps": sampling.num_steps}
    body: dict[str, Any] = {
        "model": lane.model,
        "prompt": list(request.prompt_ids),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "extra_body": extra,
    }
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    return body


def generate_body(request: Request) -> dict[str, Any]:
    """The body of a native `/generate` request, for servers older than 0.5.19."""
    sampling = request.sampling
    params: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_new_tokens": sampling.max_tokens,
        "ignore_eos": sampling.ignore_eos,
        "stop_token_ids": list(sampling.stop_token_ids),
    }
    if sampling.seed is not None:
        params["sampling_seed"] = sampling.seed
    body: dict[str, Any] = {
        "input_ids": list(request.prompt_ids),
        "sampling_params": params,
        "stream": True,
        "rid": request.rid,
    }
    if request.cache_salt is not None:
        body["extra_key"] = request.cache_salt
    return body


def read_completions_chunk(chunk: JsonObject) -> Delta:
    """One chunk of `/v1/completions`: ids and text are deltas; the counters come in one behind the last."""
    usage = chunk.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    sglext = chunk.get("sglext") or {}
    choices = chunk.get("choices") or ()
    choice: JsonObject = choices[0] if choices else {}
    ids = choice.get("token_ids") if choices else ()
    return Delta(
        ids=None if ids is None else tuple(ids),
        text=choice.get("text") or "",
        proposed=_read_proposed(choice),
        finish_reason=choice.get("finish_reason"),
        completion_tokens=usage.get("completion_tokens"),
        prompt_tokens=usage.get("prompt_tokens"),
        cached_tokens=details.get("cached_tokens"),
        spec=sglext.get("spec_tokens_details"),
        accept_lengths=_read_accept_lengths(sglext),
    )


def read_generate_chunk(chunk: JsonObject, known: int, before: str, *, ids_are_deltas: bool) -> Delta:
    """One chunk of `/generate` behind `known` ids and the text of the chunk `before`.

    Ids and text are cumulative, the counters in the `meta_info` of the last. Servers started with
    `--stream-output` or `--incremental-streaming-output` send ids as deltas, and some of them the text.
    """
    meta: JsonObject = chunk.get("meta_info") or {}
    ids = chunk.get("output_ids")
    finish = meta.get("finish_reason")
    return Delta(
        ids=None if ids is None else tuple(ids if ids_are_deltas else ids[known:]),
        text=(chunk.get("text") or "").removeprefix(before),
        finish_reason=finish.get("type") if isinstance(finish, Mapping) else finish,
        completion_tokens=meta.get("completion_tokens"),
        prompt_tokens=meta.get("prompt_tokens"),
        cached_tokens=meta.get("cached_tokens"),
        retractions=_first(meta, "num_retractions", "total_retractions"),
        spec=meta if meta.get("spec_verify_ct") is not None else None,
        accept_lengths=_read_accept_lengths(meta),
    )


def sum_up(deltas: Sequence[Delta]) -> Counters | None:
    """The engine's totals at the end of a stream; None where it told nothing."""
    spec = _last(delta.spec for delta in deltas)
    completion_tokens = _last(delta.completion_tokens for delta in deltas)
    if completion_tokens is None:
        if spec is None:
            return None
        completion_tokens = sum(len(delta.ids or ()) for delta in deltas)
    spec = spec or {}
    histogram = _first(spec, "spec_correct_drafts_histogram", "spec_accept_histogram")
    accepted = _first(spec, "spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num")
    if accepted is None and histogram is not None:
        accepted = sum(drafts * count for drafts, count in enumerate(histogram))
    return Counters(
        verify_steps=spec.get("spec_verify_ct"),
        accepted=accepted,
        proposed=_first(spec, "spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num"),
        completion_tokens=completion_tokens,
        prompt_tokens=_last(delta.prompt_tokens for delta in deltas) or 0,
        cached_tokens=_last(delta.cached_tokens for delta in deltas),
        retractions=_last(delta.retractions for delta in deltas) or 0,
        histogram=None if histogram is None else tuple(histogram),
        accept_rate=spec.get("spec_accept_rate"),
        accept_length=spec.get("spec_accept_length"),
    )


def _read_proposed(choice: JsonObject) -> tuple[int, ...] | None:
    extension = choice.get("eaglelens")
    proposed = extension.get("proposed") if isinstance(extension, Mapping) else None
    return None if proposed is None else tuple(proposed)


def _read_accept_lengths(holder: JsonObject) -> tuple[int, ...] | None:
    stats = holder.get("speculative_decoding_stats")
    lengths = stats.get("accept_lengths") if isinstance(stats, Mapping) else None
    return tuple(lengths) if isinstance(lengths, list) and lengths else None


def _first(values: JsonObject, *names: str) -> Any:
    return next((values[name] for name in names if values.get(name) is not None), None)


def _last(values: Any) -> Any:
    found = None
    for value in values:
        found = value if value is not None else found
    return found
