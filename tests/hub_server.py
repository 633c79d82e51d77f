"""A small hub over real sockets: repositories with real files, and whatever can go wrong with a download."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class FakeHub:
    """What the server has and how it misbehaves. `break_after` cuts each listed file's next answers short, in bytes."""

    repositories: dict[str, dict[str, bytes]]
    gated: set[str] = field(default_factory=set)
    token: str | None = None
    status: int | None = None
    break_after: dict[str, list[int]] = field(default_factory=dict)
    sent: list[tuple[str, int]] = field(default_factory=list)  # (file, first byte) of every body sent
    url: str = ""


@contextmanager
def serve_hub(hub: FakeHub) -> Iterator[FakeHub]:
    """Serve until the block ends."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, *_: object) -> None:
        """Keep the test's output clean."""

    def _answer(self, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        if self.hub.status is not None:
            self._refuse(self.hub.status, None)
        elif asked := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/[^/]+|/auth-check)?", path):
            self._describe(asked[1], asked[2] == "/auth-check")
        elif asked := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            self._send_file(asked[1], asked[2], with_body)
        else:
            self._refuse(404, "EntryNotFound")

    def _describe(self, name: str, checks_access: bool) -> None:
        if name not in self.hub.repositories:
            self._refuse(401, "RepoNotFound")
        elif checks_access and not self._may_read(name):
            self._refuse(403, "GatedRepo")
        else:
            files = [{"rfilename": file, "size": len(body)} for file, body in self.hub.repositories[name].items()]
            gated = "manual" if name in self.hub.gated else False
            self._send_json({"id": name, "modelId": name, "sha": COMMIT, "gated": gated, "siblings": files})

    def _send_file(self, name: str, file: str, with_body: bool) -> None:
        if not self._may_read(name):
            self._refuse(403, "GatedRepo")
            return
        body = self.hub.repositories.get(name, {}).get(file)
        if body is None:
            self._refuse(404, "EntryNotFound")
            return
        start = int(re.sub(r"\D", "", self.headers.get("Range", "bytes=0-").partition("-")[0]) or 0)
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(body) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.end_headers()
        if not with_body:
            return
        self.hub.sent.append((file, start))
        breaks = self.hub.break_after.get(file)
        if breaks:
            self.wfile.write(body[start : start + breaks.pop(0)])
            self.wfile.flush()
            self.close_connection = True
        else:
            self.wfile.write(body[start:])

    def _may_read(self, name: str) -> bool:
        return name not in self.hub.gated or self.headers.get("Authorization") == f"Bearer {self.hub.token}"

    def _refuse(self, status: int, code: str | None) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send_json(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
