"""A real HTTP server that streams what a script says, in SGLang's shapes: for tests of pace, merging and failure.

    with ChunkServer(Script.from_steps([0, 3, 0, 3], num_steps=3)) as server: ... server.url ...

What a real engine does is tested on real engines; this one is for what they cannot be made to do on demand.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal, cast

INCOMPLETE = "\ufffd"
WORDS = tuple(f" w{index}".encode() for index in range(1024))
Fault = Literal["hang", "break", "error"]


@dataclass(frozen=True)
class Script:
    """What to stream. `sizes` are kept tokens per chunk; `spec` the counters by SGLang's names, None for none.

    `interval` and `delay` are seconds between chunks and before the first. `fault` comes after `fault_after` chunks:
    silence, a cut connection, or an error event. `proposed` are per chunk the drafts that EagleLens' own engine tells.
    """

    sizes: tuple[int, ...]
    ids: tuple[int, ...] = ()
    spec: Mapping[str, object] | None = None
    finish_reason: str = "length"
    interval: float = 0.0
    delay: float = 0.0
    fault: Fault | None = None
    fault_after: int = 0
    proposed: tuple[tuple[int, ...] | None, ...] = ()
    accept_lengths: tuple[int, ...] = ()
    with_ids: bool = True
    retractions: int = 0

    @classmethod
    def from_steps(
        cls,
        accepts: Sequence[int],
        num_steps: int,
        *,
        cut: int = 0,
        merges: Sequence[bool] = (),
        **changes: Any,
    ) -> Script:
        """A reply of a prefill and one verify step per entry of `accepts`; `merges[i]` joins event i to i + 1."""
        runs = [1, *(accept + 1 for accept in accepts)]
        runs[-1] -= cut
        sizes = [runs[0]]
        for at, run in enumerate(runs[1:]):
            if at < len(merges) and merges[at]:
                sizes[-1] += run
            else:
                sizes.append(run)
        return cls(tuple(sizes), spec=count_steps(accepts, num_steps, sum(runs)), **changes)

    @classmethod
    def plain(cls, count: int, **changes: Any) -> Script:
        """A reply of `count` tokens without speculation."""
        return cls((1,) * count, **changes)


def count_steps(accepts: Sequence[int], num_steps: int, completion_tokens: int) -> dict[str, object] | None:
    """SGLang's counters of a chain; it sends none where there was no verify step."""
    steps, accepted = len(accepts), sum(accepts)
    if steps == 0:
        return None
    return {
        "spec_accept_rate": accepted / (steps * num_steps),
        "spec_accept_length": completion_tokens / steps,
        "spec_num_correct_drafts": accepted,
        "spec_num_proposed_drafts": steps * num_steps,
        "spec_verify_ct": steps,
        "spec_correct_drafts_histogram": [sum(a == k for a in accepts) for k in range(max(accepts) + 1)],
    }


@dataclass
class ChunkServer:
    """The server. `script` may be changed between requests; `requests` lists what was asked: (path, body)."""

    script: Script
    num_steps: int = 3
    version: str = "0.5.23"
    vocabulary: Sequence[bytes] = WORDS
    facts: Mapping[str, object] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()  # paths to answer with 404
    waits: Mapping[str, float] = field(default_factory=dict)  # seconds before the answer, by path
    refusal: tuple[int, object] | None = None  # status and body for /v1/completions
    api_key: str | None = None
    port: int = 0  # 0: a free one
    recorded: bytes | None = None  # a stream to answer with as it is, instead of the script
    tls: ssl.SSLContext | None = None  # serve https with its certificate
    requests: list[tuple[str, Any]] = field(default_factory=list)
    aborted: set[str] = field(default_factory=set)
    sent_at: list[float] = field(default_factory=list)  # time.monotonic() of each chunk of the last stream

    def __enter__(self) -> ChunkServer:
        self._http = _Http(("127.0.0.1", self.port), _Handler)
        self._http.owner = self
        if self.tls is not None:
            self._http.socket = self.tls.wrap_socket(self._http.socket, server_side=True)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.closing.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self._http.server_address[1]}"

    def asked(self, path: str) -> list[Any]:
        """The bodies of the requests to `path`, in order."""
        return [body for name, body in self.requests if name == path]

    def spell(self, ids: Sequence[int]) -> bytes:
        """The bytes of ids; an id outside the vocabulary has none."""
        return b"".join(self.vocabulary[i] for i in ids if 0 <= i < len(self.vocabulary))

    def describe(self) -> dict[str, object]:
        speculative = self.num_steps > 0
        return {
            "version": self.version,
            "model_path": "chunks",
            "dtype": "bfloat16",
            "stream_interval": 1,
            "speculative_algorithm": "EAGLE3" if speculative else None,
            "speculative_num_steps": self.num_steps if speculative else None,
            "speculative_eagle_topk": 1 if speculative else None,
            "speculative_num_draft_tokens": self.num_steps + 1 if speculative else None,
            **self.facts,
        }


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    owner: ChunkServer

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.closing = threading.Event()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up in the middle is no event here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    @property
    def _owner(self) -> ChunkServer:
        return cast(_Http, self.server).owner

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(json.loads(content) if content else None)

    def _answer(self, body: Any) -> None:
        owner = self._owner
        owner.requests.append((self.path, body))
        if owner.api_key is not None and self.headers.get("Authorization") != f"Bearer {owner.api_key}":
            return self._send(401, {"error": "Unauthorized"})
        cast(_Http, self.server).closing.wait(owner.waits.get(self.path, 0.0))
        if self.path in owner.missing:
            return self._send(404, {"detail": "Not Found"})
        match self.path:
            case "/server_info":
                self._send(200, owner.describe())
            case "/model_info":
                self._send(200, {"model_path": "chunks"})
            case "/v1/models":
                self._send(200, {"data": [{"id": "chunks", "max_model_len": 4096}]})
            case "/tokenize":
                self._tokenize(body)
            case "/detokenize":
                self._send(200, {"text": [owner.spell(ids).decode(errors="replace") for ids in body["tokens"]]})
            case "/abort_request":
                owner.aborted.add(body["rid"])
                self._send(200, None)
            case "/flush_cache":
                self._send(200, None)
            case "/v1/completions" if owner.refusal is not None:
                self._send(*owner.refusal)
            case "/v1/completions" | "/generate":
                self._stream(body, native=self.path == "/generate")
            case _:
                self._send(404, {"detail": "Not Found"})

    def _tokenize(self, body: Any) -> None:
        if "prompt" not in body and self._owner.version.startswith("0.5.6"):  # which takes text only
            return self._send(400, {"message": "1 validation error: prompt: Field required"})
        self._send(200, {"tokens": [1, 2, 3], "count": 3, "max_model_len": 4096})

    def _send(self, status: int, body: object) -> None:
        content = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _stream(self, body: Any, *, native: bool) -> None:
        owner, script, rid = self._owner, self._owner.script, body["rid"]
        ids = script.ids or tuple(10 + at % 900 for at in range(sum(script.sizes)))
        owner.sent_at.clear()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if owner.recorded is not None:
            self._write(owner.recorded)
            return self._write(b"")
        start = time.monotonic() + script.delay
        at, sent, spelled = 0, "", b""
        for number, size in enumerate(script.sizes):
            if script.fault is not None and number == script.fault_after:
                return self._fail(script.fault)
            self._wait_until(start + number * script.interval, rid)
            if rid in owner.aborted:
                break
            last = number == len(script.sizes) - 1
            spelled += owner.spell(ids[at : at + size])
            text = max(_hold_back(spelled, final=last), sent, key=len)
            frame = _Frame(
                rid, ids[: at + size], at, text, len(sent), script, number, script.finish_reason if last else None
            )
            self._event(frame.native() if native else frame.completion())
            at, sent = at + size, text
        if rid in owner.aborted:
            script = replace(script, spec=_count_so_far(script, owner.num_steps, at), accept_lengths=())
            frame = _Frame(rid, ids[:at], at, sent, len(sent), script, 0, "abort")
            self._event(frame.native() if native else frame.completion())
        if not native:
            for event in frame.tail():
                self._event(event)
        self._write(b"data: [DONE]\n\n")
        self._write(b"")

    def _wait_until(self, moment: float, rid: str) -> None:
        closing = cast(_Http, self.server).closing
        while (left := moment - time.monotonic()) > 0 and rid not in self._owner.aborted and not closing.is_set():
            time.sleep(min(left, 0.02))

    def _fail(self, fault: Fault) -> None:
        if fault == "hang":
            cast(_Http, self.server).closing.wait()
        if fault == "error":
            self._event({"error": {"message": "The engine ran out of memory.", "code": 500}})
            self._write(b"")
        self.close_connection = True

    def _event(self, event: object) -> None:
        self._owner.sent_at.append(time.monotonic())
        self._write(f"data: {json.dumps(event)}\n\n".encode())

    def _write(self, block: bytes) -> None:
        self.wfile.write(f"{len(block):x}\r\n".encode() + block + b"\r\n")
        self.wfile.flush()


@dataclass(frozen=True)
class _Frame:
    """One chunk in both shapes. `ids` and `text` are cumulative, `known` and `sent` say what went before."""

    rid: str
    ids: tuple[int, ...]
    known: int
    text: str
    sent: int
    script: Script
    number: int
    finish_reason: str | None

    def completion(self) -> dict[str, object]:
        choice: dict[str, object] = {
            "index": 0,
            "text": self.text[self.sent :],
            "logprobs": None,
            "finish_reason": self.finish_reason,
            "matched_stop": None,
        }
        if self.script.with_ids:
            choice["token_ids"] = self.ids[self.known :]
        if self.number < len(self.script.proposed) and self.script.proposed[self.number] is not None:
            choice["eaglelens"] = {"proposed": self.script.proposed[self.number]}
        return self._wrap([choice], usage=self._usage())

    def tail(self) -> list[dict[str, object]]:
        stats: dict[str, object] = {}
        if self.script.spec is not None:
            stats["spec_tokens_details"] = self.script.spec
        if self.script.accept_lengths:
            stats["speculative_decoding_stats"] = {"accept_lengths": self.script.accept_lengths}
        events = [self._wrap([], sglext=stats)] if stats else []
        return [*events, self._wrap([], usage=self._usage())]

    def native(self) -> dict[str, object]:
        meta: dict[str, object] = {
            "id": self.rid,
            "finish_reason": None if self.finish_reason is None else {"type": self.finish_reason},
            "prompt_tokens": 3,
            "completion_tokens": len(self.ids),
            "cached_tokens": 0,
            "total_retractions": self.script.retractions,
        }
        if self.finish_reason is not None:
            meta.update(self.script.spec or {})
        return {"text": self.text, "output_ids": self.ids, "meta_info": meta}

    def _usage(self) -> dict[str, object]:
        return {"prompt_tokens": 3, "completion_tokens": len(self.ids), "total_tokens": 3 + len(self.ids)}

    def _wrap(self, choices: list[dict[str, object]], **more: object) -> dict[str, object]:
        return {
            "id": self.rid,
            "object": "text_completion",
            "created": 0,
            "model": "chunks",
            "choices": choices,
            **more,
        }


def _hold_back(spelled: bytes, *, final: bool) -> str:
    """The text to send; unless `final`, what ends inside a character is held back to the last space before."""
    text = spelled.decode(errors="replace")
    if text.endswith(INCOMPLETE) and not final:
        text = text[: text.rfind(" ") + 1]
    return text


def _count_so_far(script: Script, num_steps: int, kept: int) -> Mapping[str, object] | None:
    """The counters of a run that was stopped after `kept` tokens, its chunks being one verify step each."""
    if script.spec is None:
        return None
    accepts, total = [], 0
    for size in script.sizes:
        if total >= kept:
            break
        accepts.append(size - 1)
        total += size
    return count_steps(accepts[1:], num_steps, kept)
