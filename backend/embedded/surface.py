"""One address of the embedded server: SGLang's endpoints, as far as EagleLens and common clients use them."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from backend.embedded.chat_template import ChatTemplateError, render_chat
from backend.embedded.engine_protocol import Engine
from backend.embedded.protocol import (
    AbortRequest,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    GenerateRequest,
    Job,
    RequestError,
    Sampling,
    TokenizeRequest,
    check_ids,
    flatten_content,
    parse_body,
    plan_job,
    refuse_unsupported,
)
from backend.embedded.responses import (
    WEIGHT_VERSION,
    ChatReply,
    CompletionReply,
    JsonObject,
    error_body,
    meta_info,
)
from backend.embedded.scheduler import Failure, Output, QueueFullError, Reply, Scheduler

# The wire is that of SGLang 0.5.23, which clients tell by the version; the local part says that this is not SGLang.
VERSION = "0.5.23+eaglelens"
MAX_BODY_BYTES = 4 * 2**20
DONE = b"data: [DONE]\n\n"

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Address:
    """Where a surface is reached, and whether the draft is used there."""

    host: str
    port: int
    speculative: bool

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


class EngineError(RuntimeError):
    """The engine could not finish a reply. `status` is the HTTP status that says so."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.status = failure.status


class Stream:
    """The outputs of one reply, handed from the engine's thread to the event loop."""

    def __init__(self, scheduler: Scheduler, job: Job) -> None:
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[Output | Failure] = asyncio.Queue()
        self.job = job
        self.ids: list[int] = []
        self.text = ""
        self.started = time.perf_counter()
        self._queue = queue
        self._scheduler = scheduler

        def deliver(output: Output | Failure) -> None:
            loop.call_soon_threadsafe(queue.put_nowait, output)

        self._reply: Reply = scheduler.submit(job, deliver)

    async def outputs(self) -> AsyncIterator[Output]:
        """Every output up to the one that finishes. Raises EngineError."""
        while True:
            output = await self._queue.get()
            if isinstance(output, Failure):
                raise EngineError(output)
            self.ids.extend(output.ids)
            self.text += output.text
            yield output
            if output.finish is not None:
                return

    async def last_output(self) -> Output:
        """Waits for the whole reply. Raises EngineError."""
        last = None
        async for output in self.outputs():
            last = output
        assert last is not None
        return last

    def abort(self) -> None:
        """Stops the work within a step; nothing happens after the end."""
        self._scheduler.abort(self._reply)

    @property
    def latency(self) -> float:
        return time.perf_counter() - self.started


class EventStream(StreamingResponse):
    """Server-sent events that stop the engine when the client goes away."""

    def __init__(self, events: AsyncIterator[bytes], stream: Stream) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._stream.abort()


class Surface:
    """The endpoints of one address over the shared engine and scheduler."""

    def __init__(self, address: Address, engine: Engine, scheduler: Scheduler) -> None:
        self.address = address
        self._engine = engine
        self._scheduler = scheduler

    def build_app(self) -> Starlette:
        """The ASGI application."""
        routes = [
            self._route("/v1/completions", self.complete, "POST"),
            self._route("/v1/chat/completions", self.chat, "POST"),
            self._route("/generate", self.generate, "POST", "PUT"),
            self._route("/tokenize", self.tokenize, "POST"),
            self._route("/v1/tokenize", self.tokenize, "POST"),
            self._route("/detokenize", self.detokenize, "POST"),
            self._route("/v1/detokenize", self.detokenize, "POST"),
            self._route("/server_info", self.server_info, "GET"),
            self._route("/get_server_info", self.server_info, "GET"),
            self._route("/model_info", self.model_info, "GET"),
            self._route("/get_model_info", self.model_info, "GET"),
            self._route("/v1/models", self.list_models, "GET"),
            self._route("/v1/models/{model:path}", self.show_model, "GET"),
            self._route("/health", self.health, "GET"),
            self._route("/health_generate", self.health, "GET"),
            self._route("/ready", self.health, "GET"),
            self._route("/flush_cache", self.flush_cache, "GET", "POST"),
            self._route("/abort_request", self.abort_request, "POST"),
            self._route("/v1/loads", self.loads, "GET"),
        ]
        return Starlette(routes=routes, exception_handlers={HTTPException: _refuse_route, Exception: _report_bug})

    # Generating

    async def complete(self, request: Request) -> Response:
        """POST /v1/completions."""
        body = parse_body(CompletionRequest, await _read_body(request))
        refuse_unsupported(body)
        prompt = body.only_prompt
        prompt_ids = prompt if isinstance(prompt, list) else await asyncio.to_thread(self._encode, prompt, True)
        stream = self._submit(body, prompt_ids, body, max_new_tokens=body.max_tokens or 16, seed=body.seed)
        reply = CompletionReply(body, stream.job, int(time.time()))
        if body.stream:
            return EventStream(_completion_events(stream, reply), stream)
        last = await _finish_unless_gone(request, stream)
        return JSONResponse(reply.body(stream.text, stream.ids, last))

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        body = parse_body(ChatRequest, await _read_body(request))
        refuse_unsupported(body)
        body.refuse_streamed_ids()
        prompt_ids = await asyncio.to_thread(
            self._encode_chat, body.messages, body.chat_template_kwargs, True, bool(body.continue_final_message), False
        )
        stream = self._submit(
            body, prompt_ids, body, max_new_tokens=body.max_completion_tokens or body.max_tokens, seed=body.seed
        )
        reply = ChatReply(body, stream.job, int(time.time()))
        if body.stream:
            return EventStream(_chat_events(stream, reply), stream)
        last = await _finish_unless_gone(request, stream)
        meta = meta_info(stream.job, last, latency=stream.latency, sent_at=time.time())
        return JSONResponse(reply.body(stream.text, stream.ids, last, meta))

    async def generate(self, request: Request) -> Response:
        """POST /generate, SGLang's native endpoint: text and ids are cumulative."""
        body = parse_body(GenerateRequest, await _read_body(request))
        refuse_unsupported(body)
        prompt_ids = body.input_ids
        if prompt_ids is None:
            prompt_ids = await asyncio.to_thread(self._encode, body.text or "", True)
        params = body.sampling_params
        stream = self._submit(body, prompt_ids, params, max_new_tokens=params.max_new_tokens, seed=params.sampling_seed)
        if body.stream:
            return EventStream(_generate_events(stream), stream)
        last = await _finish_unless_gone(request, stream)
        return JSONResponse(_generate_body(stream, last, time.time()))

    def _submit(
        self,
        body: CompletionRequest | ChatRequest | GenerateRequest,
        prompt_ids: list[int],
        sampling: Sampling,
        *,
        max_new_tokens: int | None,
        seed: int | None,
    ) -> Stream:
        job = plan_job(
            self._engine,
            rid=body.rid or uuid.uuid4().hex,
            speculative=self.address.speculative,
            prompt_ids=prompt_ids,
            sampling=sampling,
            max_new_tokens=max_new_tokens,
            seed=seed,
            extension=body.eaglelens,
        )
        return Stream(self._scheduler, job)

    # Text and ids

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize."""
        body = parse_body(TokenizeRequest, await _read_body(request))
        tokens: list[int] | list[list[int]]
        count: int | list[int]
        if body.messages is not None:
            as_given = body.add_generation_prompt is not None
            tokens = await asyncio.to_thread(
                self._encode_chat,
                body.messages,
                body.chat_template_kwargs,
                body.add_generation_prompt is not False,
                bool(body.continue_final_message),
                as_given and body.add_special_tokens and "add_special_tokens" in body.model_fields_set,
            )
            count = len(tokens)
        elif isinstance(body.prompt, list):
            lists = [await asyncio.to_thread(self._encode, text, body.add_special_tokens) for text in body.prompt]
            tokens, count = lists, [len(ids) for ids in lists]
        else:
            tokens = await asyncio.to_thread(self._encode, body.prompt or "", body.add_special_tokens)
            count = len(tokens)
        return JSONResponse({"tokens": tokens, "count": count, "max_model_len": self._engine.context_length})

    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize."""
        body = parse_body(DetokenizeRequest, await _read_body(request))
        lists = [part for part in body.tokens if isinstance(part, list)]
        if lists:
            return JSONResponse({"text": [self._decode(ids, body.skip_special_tokens) for ids in lists]})
        ids = [part for part in body.tokens if isinstance(part, int)]
        return JSONResponse({"text": self._decode(ids, body.skip_special_tokens)})

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        ids: list[int] = self._engine.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def _encode_chat(
        self,
        messages: list[dict[str, Any]],
        template_kwargs: Mapping[str, Any] | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
        add_special_tokens: bool,
    ) -> list[int]:
        flat = [flatten_content(message) for message in messages]
        opening = ""
        if continue_final_message and flat[-1]["role"] == "assistant":
            opening = flat.pop()["content"]
        try:
            text = render_chat(
                self._engine.chat_template,
                flat,
                special_tokens=self._engine.special_tokens,
                add_generation_prompt=add_generation_prompt,
                template_kwargs=template_kwargs or {},
            )
        except ChatTemplateError as error:
            raise RequestError(str(error)) from error
        return self._encode(text + opening, add_special_tokens)

    def _decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        check_ids(ids, self._engine.vocab_size)
        text: str = self._engine.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        return text

    # Facts and control

    async def server_info(self, _request: Request) -> Response:
        """GET /server_info: SGLang's fields as far as they mean something here, and the engine's own facts."""
        engine, address = self._engine, self.address
        speculative = address.speculative
        load = self._scheduler.load(speculative=speculative)
        internal: JsonObject = {
            "last_gen_throughput": load.throughput,
            "effective_max_running_requests_per_dp": self._scheduler.limits.max_running,
        }
        if load.counters.acceptance_length is not None:
            internal["avg_spec_accept_length"] = load.counters.acceptance_length
        return JSONResponse(
            {
                "model_path": engine.model_name,
                "tokenizer_path": engine.model_name,
                "served_model_name": engine.model_name,
                "weight_version": WEIGHT_VERSION,
                "device": str(engine.device),
                "dtype": engine.dtype,
                "context_length": engine.context_length,
                "host": address.host,
                "port": address.port,
                "max_running_requests": self._scheduler.limits.max_running,
                "max_queued_requests": self._scheduler.limits.max_queued,
                "stream_interval": 1,
                "incremental_streaming_output": False,
                "enable_cache_report": False,
                "disable_radix_cache": False,
                "reasoning_parser": None,
                "tool_call_parser": None,
                "speculative_algorithm": "EAGLE3" if speculative else None,
                "speculative_draft_model_path": engine.draft_name if speculative else None,
                "speculative_num_steps": engine.num_steps if speculative else None,
                "speculative_eagle_topk": 1 if speculative else None,
                "speculative_num_draft_tokens": engine.num_steps + 1 if speculative else None,
                "speculative_adaptive": False,
                "status": "ready",
                "max_req_input_len": engine.context_length - 1,
                "internal_states": [internal],
                "version": VERSION,
                "frontend": "python",
                "eaglelens": {
                    "engine": "embedded",
                    "model": engine.model_name,
                    "draft": engine.draft_name if speculative else None,
                    "dtype": engine.dtype,
                    "threads": engine.threads,
                    "bit_exact": engine.bit_exact,
                    "max_num_steps": engine.max_num_steps if speculative else 0,
                },
            }
        )

    async def model_info(self, _request: Request) -> Response:
        """GET /model_info."""
        name = self._engine.model_name
        return JSONResponse(
            {
                "model_path": name,
                "served_model_name": name,
                "tokenizer_path": name,
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": WEIGHT_VERSION,
                "reasoning_parser": None,
                "tool_call_parser": None,
                "has_image_understanding": False,
                "has_audio_understanding": False,
            }
        )

    async def list_models(self, _request: Request) -> Response:
        """GET /v1/models."""
        return JSONResponse({"object": "list", "data": [self._model_card()]})

    async def show_model(self, request: Request) -> Response:
        """GET /v1/models/NAME."""
        name = request.path_params["model"]
        if name == self._engine.model_name:
            return JSONResponse(self._model_card())
        error = {
            "message": f"The model '{name}' does not exist",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
        return JSONResponse({"error": error}, status_code=404)

    def _model_card(self) -> JsonObject:
        return {
            "id": self._engine.model_name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "eaglelens",
            "root": self._engine.model_name,
            "parent": None,
            "max_model_len": self._engine.context_length,
        }

    async def health(self, _request: Request) -> Response:
        """GET /health: instant, and without generating, so that it never disturbs a timed run."""
        return Response(status_code=200 if self._scheduler.is_alive else 503)

    async def flush_cache(self, request: Request) -> Response:
        """GET or POST /flush_cache?timeout=SECONDS."""
        text = request.query_params.get("timeout", "0")
        try:
            timeout = float(text)
        except ValueError:
            raise RequestError(f"timeout must be a number of seconds, got {text!r}.") from None
        if not 0 <= timeout <= 600:
            raise RequestError(f"timeout must be between 0 and 600 seconds, got {text}.")
        if await asyncio.wrap_future(self._scheduler.flush_cache(timeout, speculative=self.address.speculative)):
            return Response("Cache flushed.\n")
        return Response("Flush cache failed: requests are running or waiting.\n", status_code=400)

    async def abort_request(self, request: Request) -> Response:
        """POST /abort_request: the request of this address called `rid`, or all of them."""
        body = parse_body(AbortRequest, await _read_body(request))
        if body.abort_all:
            self._scheduler.abort_all(speculative=self.address.speculative)
        elif body.rid:
            self._scheduler.abort_named(body.rid, speculative=self.address.speculative)
        return Response()

    async def loads(self, _request: Request) -> Response:
        """GET /v1/loads."""
        load = self._scheduler.load(speculative=self.address.speculative)
        limits = self._scheduler.limits
        entry: JsonObject = {
            "timestamp": time.time(),
            "dp_rank": 0,
            "num_running_reqs": load.running,
            "num_waiting_reqs": load.waiting,
            "num_used_tokens": load.used_tokens,
            "num_total_tokens": load.used_tokens + load.waiting_tokens,
            "max_running_requests": limits.max_running,
            "gen_throughput": load.throughput,
            "utilization": load.running / limits.max_running,
        }
        length = load.counters.acceptance_length
        if length is not None:
            rate = load.counters.accepted / load.counters.proposed
            entry["speculative"] = {"accept_length": length, "accept_rate": rate}
        entry["queues"] = {"waiting": load.waiting, "grammar": 0, "paused": 0, "retracted": 0, "prealloc_ready": 0}
        return JSONResponse(
            {
                "timestamp": datetime.now(UTC).isoformat(),
                "version": VERSION,
                "accelerator": None,
                "num_accelerators": 0,
                "loads": [entry],
            }
        )

    def _route(self, path: str, handler: Handler, *methods: str) -> Route:
        show_error = _generate_error if path == "/generate" else _openai_error

        async def answer(request: Request) -> Response:
            try:
                return await handler(request)
            except RequestError as error:
                return show_error(str(error), error.kind, 400)
            except QueueFullError as error:
                return show_error(str(error), "503", 503)
            except EngineError as error:
                return show_error(str(error), "InternalServerError", error.status)

        return Route(path, answer, methods=list(methods))


def _openai_error(message: str, kind: str, status: int) -> Response:
    return JSONResponse(error_body(message, kind, status), status_code=status)


def _generate_error(message: str, _kind: str, status: int) -> Response:
    return JSONResponse({"error": {"message": message}}, status_code=status)


async def _refuse_route(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _openai_error(error.detail, str(error.status_code), error.status_code)


async def _report_bug(_request: Request, _error: Exception) -> Response:
    return _openai_error("Internal server error", "InternalServerError", 500)


async def _read_body(request: Request) -> bytes:
    media_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if media_type != "application/json":
        # A foreign web page can post other types without asking; JSON it cannot.
        raise RequestError("Unsupported Media Type: Only 'application/json' is allowed", kind="Bad Request")
    body = bytearray()
    async for chunk in request.stream():
        body.extend(chunk)
        if len(body) > MAX_BODY_BYTES:
            raise RequestError(f"The request is larger than {MAX_BODY_BYTES // 2**20} MiB.", kind="Bad Request")
    return bytes(body)


async def _finish_unless_gone(request: Request, stream: Stream) -> Output:
    """The last output of a reply that is not streamed; a client that hangs up stops the work."""
    gone = asyncio.create_task(_wait_until_gone(request))
    last = asyncio.create_task(stream.last_output())
    try:
        await asyncio.wait((gone, last), return_when=asyncio.FIRST_COMPLETED)
        if not last.done():
            stream.abort()
        return await last
    finally:
        gone.cancel()
        stream.abort()


async def _wait_until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue


def _event(body: Mapping[str, object]) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


async def _completion_events(stream: Stream, reply: CompletionReply) -> AsyncIterator[bytes]:
    try:
        async for output in stream.outputs():
            yield _event(reply.stream_chunk(output))
            last = output
        for chunk in reply.stream_tail(last, stream.ids):
            yield _event(chunk)
    except EngineError as error:
        yield _event({"error": error_body(str(error), "InternalServerError", error.status)})
    yield DONE


async def _chat_events(stream: Stream, reply: ChatReply) -> AsyncIterator[bytes]:
    try:
        async for output in stream.outputs():
            for chunk in reply.stream_chunks(output):
                yield _event(chunk)
            last = output
        for chunk in reply.stream_tail(last, stream.ids):
            yield _event(chunk)
    except EngineError as error:
        yield _event({"error": error_body(str(error), "InternalServerError", error.status)})
    yield DONE


async def _generate_events(stream: Stream) -> AsyncIterator[bytes]:
    sent_at: float | None = time.time()
    try:
        async for output in stream.outputs():
            yield _event(_generate_body(stream, output, sent_at))
            sent_at = None
    except EngineError as error:
        message = {"message": str(error), "type": "internal_server_error", "code": error.status, "retryable": False}
        yield _event({"error": message})
    yield DONE


def _generate_body(stream: Stream, output: Output, sent_at: float | None) -> JsonObject:
    meta = meta_info(stream.job, output, latency=stream.latency, sent_at=sent_at)
    return {"text": stream.text, "output_ids": list(stream.ids), "meta_info": meta}
