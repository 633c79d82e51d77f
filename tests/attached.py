"""Certificates and model folders for the tests that attach to a server."""

from __future__ import annotations

import json
import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme

TEMPLATE = "{{ bos_token }}{% for message in messages %}[{{ message.role }}] {{ message.content }}{% endfor %}[answer] "


@dataclass(frozen=True)
class Certificate:
    """A server's own certificate, and the bundle that vouches for it."""

    server: ssl.SSLContext
    bundle: Path


def make_certificate(folder: Path) -> Certificate:
    """A certificate of 127.0.0.1, signed by an authority that no machine knows."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    bundle = folder / "authority.pem"
    authority.cert_pem.write_to_path(str(bundle))
    return Certificate(context, bundle)


def write_template(folder: Path) -> Path:
    """A model folder with nothing but a chat template."""
    folder.mkdir()
    settings = {"bos_token": {"content": "<s>"}, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
