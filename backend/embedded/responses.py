"""What the server answers: SGLang 0.5.23's bodies and stream chunks, key for key and in its order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from backend.embedded.protocol import ChatRequest, CompletionRequest, Job
from backend.embedded.scheduler import Output, SpecCounters

WEIGHT_VERSION = "default"
JsonObject = dict[str, Any]


def error_body(message: str, kind: str, code: int) -> JsonObject:
    """An error of the endpoints under /v1."""
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}


def finish_reason(output: Output) -> JsonObject | None:
    """The `finish_reason` of a meta_info."""
    finish = output.finish
    if finish is None:
        return None
    if finish.kind == "length":
        return {"type": "length", "length": finish.kept}
    if finish.kind == "abort":
        return {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    return {"type": "stop", "matched": finish.matched}


def spec_meta(counters: SpecCounters, completion_tokens: int) -> JsonObject:
    """The speculative group of a last meta_info; empty without a verify step.

    `spec_accept_length` is SGLang's: completion tokens over verify steps, which counts the prefill's token and loses
    cut ones. DESIGN's acceptance length is (A + V) / V.
    """
    if counters.verify_steps == 0:
        return {}
    rate = counters.accepted / counters.proposed if counters.proposed else 0.0
    return {
        "spec_accept_rate": rate,
        "spec_accept_length": completion_tokens / counters.verify_steps,
        "spec_num_correct_drafts": counters.accepted,
        "spec_num_proposed_drafts": counters.proposed,
        "spec_verify_ct": counters.verify_steps,
        "spec_correct_drafts_histogram": list(counters.histogram),
    }


def spec_details(counters: SpecCounters, completion_tokens: int) -> JsonObject | None:
    """The speculative group of an `sglext`; None without a verify step."""
    meta = spec_meta(counters, completion_tokens)
    if not meta:
        return None
    return {
        "spec_accept_rate": meta["spec_accept_rate"],
        "spec_accept_length": meta["spec_accept_length"],
        "spec_cap_length": 0.0,
        "spec_block_accept_length": 0.0,
        "spec_num_correct_drafts": meta["spec_num_correct_drafts"],
        "spec_num_proposed_drafts": meta["spec_num_proposed_drafts"],
        "spec_verify_ct": meta["spec_verify_ct"],
        "spec_correct_drafts_histogram": meta["spec_correct_drafts_histogram"],
        "spec_cap_lens_histogram": [],
    }


def cached_details(output: Output) -> JsonObject | None:
    """Where the cached part of the prompt was held; None where nothing was cached."""
    return {"device": output.cached_tokens, "host": 0} if output.cached_tokens else None


def usage(job: Job, output: Output) -> JsonObject:
    """Token counts up to and including `output`."""
    prompt_tokens = len(job.prompt_ids)
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + output.completion_tokens,
        "completion_tokens": output.completion_tokens,
        "prompt_tokens_details": None,
        "reasoning_tokens": 0,
        "completion_tokens_details": None,
    }


def meta_info(job: Job, output: Output, *, latency: float, sent_at: float | None) -> JsonObject:
    """The `meta_info` of /generate. `latency` in seconds since the request came; `sent_at` is Unix time."""
    meta: JsonObject = {
        "id": job.rid,
        "finish_reason": finish_reason(output),
        "prompt_tokens": len(job.prompt_ids),
        "weight_version": WEIGHT_VERSION,
        "num_retractions": 0,
        "reasoning_tokens": 0,
        "completion_tokens": output.completion_tokens,
        "cached_tokens": output.cached_tokens,
    }
    if output.finish is not None:
        meta["weight_versions"] = _weight_versions(output)
    meta["cached_tokens_details"] = cached_details(output)
    meta["dp_rank"] = None
    if output.finish is not None:
        meta["e2e_latency"] = latency
        meta.update(spec_meta(output.counters, output.completion_tokens))
    if sent_at is not None:
        meta["response_sent_to_client_ts"] = sent_at
    return meta


def _weight_versions(output: Output) -> list[JsonObject]:
    return [{"version": WEIGHT_VERSION, "start": 0, "end": output.completion_tokens}]


def _metadata(output: Output) -> JsonObject:
    return {"weight_version": WEIGHT_VERSION, "weight_versions": _weight_versions(output)}


def _finish_kind(output: Output) -> str | None:
    return output.finish.kind if output.finish else None


def _matched(output: Output) -> str | int | None:
    return output.finish.matched if output.finish else None


def _sglext(request: CompletionRequest | ChatRequest, job: Job, output: Output, ids: Sequence[int]) -> JsonObject:
    """The parts of `sglext` that were asked for and exist."""
    parts: dict[str, object] = {}
    if request.return_cached_tokens_details:
        parts["cached_tokens_details"] = cached_details(output)
    if request.return_spec_tokens_details:
        parts["spec_tokens_details"] = spec_details(output.counters, output.completion_tokens)
    if isinstance(request, ChatRequest) and request.return_input_ids_in_sglext:
        parts["input_ids"] = list(job.prompt_ids)
    if isinstance(request, ChatRequest) and request.return_output_ids_in_sglext:
        parts["output_ids"] = [list(ids)]
    return {name: value for name, value in parts.items() if value is not None}


class CompletionReply:
    """The shapes of one /v1/completions reply."""

    def __init__(self, request: CompletionRequest, job: Job, created: int) -> None:
        self._request = request
        self._job = job
        self._created = created
        options = request.stream_options
        self._include_usage = bool(options and options.include_usage)
        self._continuous_usage = bool(options and options.continuous_usage_stats)
        self._is_first = True

    def stream_chunk(self, output: Output) -> JsonObject:
        """The chunk of one engine output."""
        choice: JsonObject = {
            "index": 0,
            "text": output.text,
            "logprobs": None,
            "finish_reason": _finish_kind(output),
            "matched_stop": _matched(output),
        }
        if self._request.return_token_ids:
            choice["token_ids"] = list(output.ids)
            if self._is_first:
                choice["prompt_token_ids"] = list(self._job.prompt_ids)
        if self._job.speculative and output.proposed is not None:
            choice["eaglelens"] = {"proposed": list(output.proposed)}
        self._is_first = False
        return self._frame([choice], usage(self._job, output) if self._continuous_usage else None)

    def stream_tail(self, last: Output, ids: Sequence[int]) -> Iterator[JsonObject]:
        """The chunks behind the one with the finish reason."""
        sglext = _sglext(self._request, self._job, last, ids)
        if sglext:
            yield {**self._frame([], None), "sglext": sglext}
        if self._include_usage:
            counts = {name: count for name, count in usage(self._job, last).items() if count is not None}
            yield self._frame([], counts)

    def body(self, text: str, ids: Sequence[int], last: Output) -> JsonObject:
        """The answer to a request that does not stream."""
        choice: JsonObject = {
            "index": 0,
            "text": text,
            "logprobs": None,
            "finish_reason": _finish_kind(last),
            "matched_stop": _matched(last),
        }
        if self._request.return_token_ids:
            choice["token_ids"] = list(ids)
            choice["prompt_token_ids"] = list(self._job.prompt_ids)
        body = self._frame([choice], usage(self._job, last)) | {"metadata": _metadata(last)}
        sglext = _sglext(self._request, self._job, last, ids)
        return body | {"sglext": sglext} if sglext else body

    def _frame(self, choices: list[JsonObject], counts: JsonObject | None) -> JsonObject:
        return {
            "id": self._job.rid,
            "object": "text_completion",
            "created": self._created,
            "model": self._request.model,
            "choices": choices,
            "usage": counts,
        }


class ChatReply:
    """The shapes of one /v1/chat/completions reply."""

    def __init__(self, request: ChatRequest, job: Job, created: int) -> None:
        self._request = request
        self._job = job
        self._created = created
        options = request.stream_options
        self._include_usage = bool(options and options.include_usage)
        self._continuous_usage = bool(options and options.continuous_usage_stats)
        self._is_first = True

    def stream_chunks(self, output: Output) -> Iterator[JsonObject]:
        """The chunks of one engine output: none where it brought no text."""
        if self._is_first:
            self._is_first = False
            yield self._choice_frame({"reasoning_content": None, "role": "assistant", "content": ""})
        if output.text:
            chunk = self._choice_frame({"reasoning_content": None, "content": output.text})
            yield chunk | {"usage": usage(self._job, output)} if self._continuous_usage else chunk

    def stream_tail(self, last: Output, ids: Sequence[int]) -> Iterator[JsonObject]:
        """The chunks behind the last text."""
        yield self._choice_frame({"reasoning_content": None}, _finish_kind(last), _matched(last))
        sglext = _sglext(self._request, self._job, last, ids)
        if sglext:
            yield self._frame("chat.completion.chunk", []) | {"usage": None, "sglext": sglext}
        if self._include_usage:
            yield self._frame("chat.completion.chunk", []) | {"usage": usage(self._job, last)}

    def body(self, text: str, ids: Sequence[int], last: Output, meta: Mapping[str, object]) -> JsonObject:
        """The answer to a request that does not stream; `meta` is what `return_meta_info` asks for."""
        choice: JsonObject = {
            "index": 0,
            "message": {"role": "assistant", "content": text, "reasoning_content": None},
            "logprobs": None,
            "finish_reason": _finish_kind(last),
            "matched_stop": _matched(last),
        }
        if self._request.return_prompt_token_ids or self._request.return_token_ids:
            choice["prompt_token_ids"] = list(self._job.prompt_ids)
        if self._request.return_token_ids:
            choice["response_token_ids"] = list(ids)
        if self._request.return_meta_info:
            choice["meta_info"] = dict(meta)
        body = self._frame("chat.completion", [choice]) | {"usage": usage(self._job, last), "metadata": _metadata(last)}
        sglext = _sglext(self._request, self._job, last, ids)
        return body | {"sglext": sglext} if sglext else body

    def _choice_frame(self, delta: JsonObject, kind: str | None = None, matched: str | int | None = None) -> JsonObject:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": kind, "matched_stop": matched}
        return self._frame("chat.completion.chunk", [choice])

    def _frame(self, kind: str, choices: list[JsonObject]) -> JsonObject:
        return {
            "id": self._job.rid,
            "object": kind,
            "created": self._created,
            "model": self._request.model,
            "choices": choices,
        }
