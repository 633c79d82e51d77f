"""Talks to any server that speaks SGLang's protocol: one streamed request as events, and the small calls around it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from backend.chat_prompt import render_prompt
from backend.embedded.chat_template import ChatTemplateError
from backend.errors import LaneError, LaneRefusedError
from backend.events import Event, Request, RunEnded, RunStarted
from backend.failures import FAILURES, describe_failure, describe_status, read_message
from backend.hub import HubError
from backend.lanes import Lane, lane_from_facts, list_workers, normalise_url
from backend.pieces import find_anchor, list_windows, read_windows, strip_anchor
from backend.reader import CONNECT_TIMEOUT, Reader, authorise
from backend.run_builder import RunBuilder, run_so_far, steps_asked
from backend.server_load import ServerLoad, load_from_answers
from backend.transport import connect, http

__all__ = [
    "abort",
    "detokenize",
    "flush_cache",
    "read_lane",
    "read_load",
    "read_vocabulary",
    "run_so_far",
    "stream_run",
    "tokenize_chat",
]

SILENCE_TIMEOUT = 300.0  # seconds without a byte; a long prompt in a queue can take minutes
CALL_TIMEOUT = 15.0
SETTLE_TIMEOUT = 5.0
VOCABULARY_BATCH = 4096
ANCHOR_CHOICE = 256  # ids; no vocabulary is smaller
VOCABULARY_LIMIT = 512 * 1024


async def stream_run(
    lane: Lane, request: Request, *, stop: asyncio.Event | None = None, timeout: float = SILENCE_TIMEOUT
) -> AsyncGenerator[Event, None]:
    """Stream one request: RunStarted, then TokensArrived for each chunk, then RunEnded; never raises for the server.

    Chunks are read and timed in a thread of their own, so a slow consumer changes no number. Setting `stop`, or
    `abort(lane, request.rid)`, ends the run early with what came; closing or cancelling this generator aborts the
    request too, without a RunEnded (`run_so_far` makes a run of the events). A failure ends as `run.error`.
    """
    started = RunStarted(lane.label, request, time.time(), steps_asked(lane, request))
    builder = RunBuilder(lane, started)
    reader = Reader(lane, request, timeout)
    reader.start()
    watching = None if stop is None else asyncio.create_task(_stop_on(stop, reader))
    error = None
    try:
        yield started
        try:
            async for arrival in reader:
                event = builder.add(arrival.delta, arrival.arrived)
                if event is not None:
                    yield event
        except FAILURES as failure:
            error = describe_failure(lane, failure, in_reply=bool(builder.ids))
        if error is None:
            await _settle_pieces(lane, builder)
        held, run = builder.end(error, lane.facts)
        if held is not None:
            yield held
        yield RunEnded(run)
    finally:
        reader.stop()
        if watching is not None:
            watching.cancel()


async def abort(lane: Lane, rid: str) -> None:
    """Stop a request on the server; its stream then ends by itself. Raises LaneError."""
    for server in lane.servers:  # those that do not know it ignore it
        await _call(server, "POST", "/abort_request", {"rid": rid})


async def tokenize_chat(
    lane: Lane, messages: Sequence[Mapping[str, object]], chat_template_kwargs: Mapping[str, object] | None = None
) -> tuple[int, ...]:
    """The prompt ids of a conversation, by the chat template of the server's model. Raises LaneError.

    Older servers (0.5.6 among them) tokenize text only; there the template is read here, from the model's files.
    """
    body: dict[str, object] = {"model": lane.model, "messages": [dict(message) for message in messages]}
    if chat_template_kwargs:
        body["chat_template_kwargs"] = dict(chat_template_kwargs)
    try:
        answer = await _call(lane.servers[0], "POST", "/tokenize", body)
    except LaneRefusedError:
        if lane.speaks_completions:
            raise
        text = await asyncio.to_thread(_render_here, lane, messages, chat_template_kwargs or {})
        plain = {"model": lane.model, "prompt": text, "add_special_tokens": False}
        answer = await _call(lane.servers[0], "POST", "/tokenize", plain)
    ids = answer.get("tokens") if isinstance(answer, Mapping) else None
    if not isinstance(ids, list) or not all(isinstance(token, int) for token in ids):
        raise LaneError(
            f"{lane.label} does not turn a conversation into tokens. Use SGLang 0.5.19 or newer, "
            "or a model with a chat template."
        )
    return tuple(ids)


async def detokenize(
    lane: Lane, sequences: Sequence[Sequence[int]], *, timeout: float = CALL_TIMEOUT
) -> tuple[str, ...]:
    """The text of each id sequence, special tokens left out, in one request. Raises LaneError."""
    if not sequences:
        return ()
    body = {"model": lane.model, "tokens": [list(ids) for ids in sequences], "skip_special_tokens": True}
    answer = await _call(lane.servers[0], "POST", "/detokenize", body, timeout=timeout)
    texts = answer.get("text") if isinstance(answer, Mapping) else None
    if not isinstance(texts, list) or len(texts) != len(sequences):
        raise LaneError(f"{lane.label} does not turn tokens into text. Use SGLang 0.5.19 or newer.")
    return tuple(str(text) for text in texts)


async def flush_cache(lane: Lane) -> None:
    """Empty the server's prefix cache; it refuses while requests run. Disturbs its other users. Raises LaneError."""
    await _call(lane, "POST", "/flush_cache")


async def read_lane(
    base_url: str,
    label: str,
    *,
    api_key: str | None = None,
    ca_file: str | None = None,
    with_vocabulary: bool = True,
) -> Lane:
    """Ask a server what it is, and for the text of each token. Raises LaneError.

    Where it does not tell (behind a router, say) the lane has fewer facts, and `warnings` say so.
    """
    lane = Lane(label, normalise_url(base_url), "default", api_key=api_key, ca_file=ca_file)
    facts = await _call_if_known(lane, "/server_info") or await _call_if_known(lane, "/get_server_info")
    workers: tuple[str, ...] = ()
    if "router_manager" in facts:
        workers = list_workers(await _call_if_known(lane, "/workers"))
        if not workers:
            raise LaneError(f"{label} at {lane.base_url} is SGLang's router, with no healthy server behind it.")
        facts = await _read_worker(lane, replace(lane, base_url=workers[0]))
    models = await _call_if_known(lane, "/v1/models")
    if not models and not facts:
        raise LaneRefusedError(describe_status(lane, 404, ""))
    lane = lane_from_facts(label, base_url, facts, models, api_key=api_key, ca_file=ca_file, workers=workers)
    return replace(lane, vocabulary=await read_vocabulary(lane)) if with_vocabulary else lane


async def read_load(lane: Lane, *, with_averages: bool) -> ServerLoad:
    """How busy a server is. `with_averages` asks its scheduler too, which costs that a moment. Raises LaneError."""
    server = lane.servers[0]
    loads = await _call_if_known(server, "/v1/loads")
    facts = await _call_if_known(server, "/server_info") if with_averages else {}
    return load_from_answers(loads, facts)


async def read_vocabulary(lane: Lane) -> tuple[str, ...]:
    """The text that each token adds behind other text, by id; empty where the server does not decode.

    Asked once per lane, before any timed request: it takes the server a second or so.
    """
    texts: list[str] = []
    batch = VOCABULARY_BATCH
    with suppress(LaneError):  # pieces are then found at the end of a run, or given per chunk
        first = await detokenize(lane, [[token] for token in range(ANCHOR_CHOICE)])
        anchor = find_anchor(first)
        while anchor is not None and batch and len(texts) < VOCABULARY_LIMIT:
            behind = [[anchor, token] for token in range(len(texts), len(texts) + batch)]
            try:
                found = strip_anchor(first[anchor], await detokenize(lane, behind))
            except LaneRefusedError:  # some servers refuse ids past the end, others decode them to nothing
                batch //= 2
                continue
            if not any(found):
                break
            texts += found
    while texts and not texts[-1]:
        texts.pop()
    return tuple(texts)


def _render_here(lane: Lane, messages: Sequence[Mapping[str, object]], kwargs: Mapping[str, object]) -> str:
    try:
        return render_prompt(str(lane.facts.get("model_path") or lane.model), messages, kwargs)
    except (HubError, ChatTemplateError) as error:
        raise LaneError(
            f"{lane.label} runs SGLang {lane.version}, which applies no chat template for its clients, and that of "
            f"its model could not be read here. {error}"
        ) from error


async def _stop_on(stop: asyncio.Event, reader: Reader) -> None:
    await stop.wait()
    reader.stop()


async def _settle_pieces(lane: Lane, builder: RunBuilder) -> None:
    """Decode what live splitting left open, once the timed stream is over; without an answer it stays as it was."""
    spans = builder.open_spans()
    windows = [list_windows(builder.ids, span) for span in spans]
    with suppress(LaneError):
        decoded = await detokenize(lane, [ids for group in windows for ids in group], timeout=SETTLE_TIMEOUT)
        at = 0
        for span, group in zip(spans, windows, strict=True):
            pieces = read_windows(span, decoded[at : at + len(group)])
            at += len(group)
            if pieces is not None:
                builder.settle(span, pieces)


async def _read_worker(lane: Lane, worker: Lane) -> Mapping[str, object]:
    """What a server behind a router tells of itself. Raises LaneError with what to do where it cannot be asked."""
    try:
        return await _call_if_known(worker, "/server_info")
    except LaneError as error:
        raise LaneError(
            f"{lane.label} at {lane.base_url} is SGLang's router, which turns no text into tokens for its clients; "
            f"the server behind it, {worker.base_url}, cannot be asked from here. "
            f"Run EagleLens where it can be. ({error})"
        ) from error


async def _call_if_known(lane: Lane, path: str) -> Mapping[str, object]:
    """The JSON object at `path`, empty where the server has no such address."""
    answer = await _call(lane, "GET", path, missing_ok=True)
    return answer if isinstance(answer, Mapping) else {}


async def _call(
    lane: Lane,
    method: str,
    path: str,
    body: Mapping[str, object] | None = None,
    *,
    timeout: float = CALL_TIMEOUT,
    missing_ok: bool = False,
) -> Any:
    """One small request; its JSON, or None where the answer is not JSON or `missing_ok` and there is no such path."""
    limits = http.Timeout(timeout, connect=CONNECT_TIMEOUT)
    try:
        async with http.AsyncClient(transport=connect(lane.base_url, lane.ca_file), timeout=limits) as client:
            response = await client.request(method, f"{lane.base_url}{path}", json=body, headers=authorise(lane))
    except FAILURES as error:
        raise LaneError(describe_failure(lane, error)) from error
    if missing_ok and response.status_code in (404, 405):
        return None
    if response.status_code >= 400:
        raise LaneRefusedError(describe_status(lane, response.status_code, read_message(response.text)))
    try:
        return response.json()
    except ValueError:
        return None
