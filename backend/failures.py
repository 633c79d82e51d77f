"""What went wrong with a lane, as one sentence with the remedy."""

from __future__ import annotations

import json
from typing import Any

import openai

from backend.lanes import Lane
from backend.transport import http

FAILURES: tuple[type[Exception], ...] = (openai.APIError, http.HTTPError, http.InvalidURL, OSError)
_TOO_LONG = ("context length", "maximum context", "longer than", "exceeds", "too long")


def describe_failure(lane: Lane, error: Exception, *, in_reply: bool = False) -> str:
    """The sentence for an error of FAILURES. `in_reply` says that part of a reply had come."""
    name = f"{lane.label} at {lane.base_url}"
    if isinstance(error, openai.APIStatusError):
        return describe_status(lane, error.status_code, read_message(error.response.text))
    if _is_silence(error):
        return f"{name} has fallen silent: it may be overloaded or stuck. Try again, or restart it."
    if type(error) is openai.APIError:
        return f"{name} reported an error: {str(error).rstrip('.')}. Try again, or look at its log."
    if in_reply:
        return f"{name} broke off in the middle of its reply. What came is kept: restart it and try again."
    return f"{name} {_describe_connection(error)}"


def _is_silence(error: Exception) -> bool:
    return _stems_from(error, http.TimeoutException) and not _stems_from(error, http.ConnectTimeout)


def _describe_connection(error: Exception) -> str:
    if any("CERTIFICATE_VERIFY_FAILED" in str(cause) for cause in _list_causes(error)):
        return "shows a certificate that cannot be checked. Name its certificate file, or use its http address."
    if _stems_from(error, http.InvalidURL, http.UnsupportedProtocol):
        return "is not an address. Give one such as http://127.0.0.1:30000."
    if _stems_from(error, http.ReadError, http.RemoteProtocolError):
        return "closed the connection without an answer. Restart it, or check that the address is its own."
    return "does not answer. Start it, or check the address."


def describe_status(lane: Lane, status: int, message: str) -> str:
    """The sentence for an HTTP status of 400 or more, with what the server said."""
    said = f": {message.rstrip('.')}" if message else ""
    if status in (401, 403):
        return f"{lane.label} refused the key ({status}). Give the API key that it was started with."
    if status == 404:
        return f"{lane.label} at {lane.base_url} does not know this request (404). Check that it is an SGLang server."
    if status in (429, 503):
        return f"{lane.label} is busy ({status}{said}). Wait a moment and try again."
    if status >= 500:
        return f"{lane.label} failed ({status}{said}). Try again; if it stays so, restart it and look at its log."
    if any(words in message.lower() for words in _TOO_LONG):
        return f"{lane.label} cannot take so much{said}. Shorten the conversation, or lower the limit of tokens."
    return f"{lane.label} refused the request ({status}{said}). Change the settings and try again."


def read_message(body: str) -> str:
    """What an error body says: OpenAI's and SGLang's shapes, else its first 200 characters."""
    try:
        answer: Any = json.loads(body)
    except ValueError:
        return body.strip()[:200]
    if isinstance(answer, dict):
        inner = answer.get("error", answer)
        message = inner.get("message") or inner.get("detail") if isinstance(inner, dict) else inner
        return str(message or "")[:400]
    return str(answer)[:200]


def _stems_from(error: Exception, *kinds: type[Exception]) -> bool:
    return any(isinstance(cause, kinds) for cause in _list_causes(error))


def _list_causes(error: BaseException) -> list[BaseException]:
    """The error and what led to it: libraries wrap each other's."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and cause not in causes:
        causes.append(cause)
    return causes
