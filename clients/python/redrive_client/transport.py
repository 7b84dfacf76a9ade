"""Requests that are repeated until they are answered."""

from __future__ import annotations

import json
import random
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, Mapping, Optional, Tuple

from .errors import Problem, Unanswered

#: Statuses that say that the same request may succeed later, where no document says otherwise.
RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})

#: The longest answer that is read.
ANSWER_MAX = 64 << 20


@dataclass(frozen=True)
class Backoff:
    """Waits between two tries: exponential with full jitter, never above `cap`, for `limit` seconds in all.

    `limit=None` repeats until there is an answer.
    """

    base: float = 0.1
    cap: float = 5.0
    limit: Optional[float] = 60.0

    def wait(self, tries: int) -> float:
        return random.uniform(0, min(self.cap, self.base * 2 ** min(tries, 30)))


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer: a POST that is repeated elsewhere as a GET would lose its body."""

    def redirect_request(self, *_: Any) -> None:
        return None


OPENER = urllib.request.build_opener(NoRedirects())


def exchange(method: str, url: str, headers: Mapping[str, str], body: Optional[bytes],
             timeout: float) -> Tuple[int, Mapping[str, str], bytes]:
    """Sends one request. Fails with `OSError` or `HTTPException` if there is no whole answer."""
    request = urllib.request.Request(url, data=body, headers=dict(headers), method=method)
    try:
        with OPENER.open(request, timeout=timeout) as answer:
            return answer.status, lowered(answer.headers), answer.read(ANSWER_MAX)
    except urllib.error.HTTPError as answer:
        with answer:
            return answer.code, lowered(answer.headers), answer.read(ANSWER_MAX)


def lowered(headers: Any) -> Mapping[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def document(headers: Mapping[str, str], body: bytes) -> Mapping[str, Any]:
    """The JSON object of an answer, or nothing."""
    if "json" not in headers.get("content-type", ""):
        return {}
    try:
        read = json.loads(body)
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


def is_retryable(status: int, said: Mapping[str, Any]) -> bool:
    """Whether the same request may succeed later: as the document says, or by its status."""
    retryable = said.get("retryable")
    return retryable if isinstance(retryable, bool) else status in RETRIED


def asked_wait(headers: Mapping[str, str], said: Mapping[str, Any]) -> float:
    """How long the answer asks to wait, in seconds."""
    waits = [0.0]
    try:
        waits.append(float(said.get("retry_after_ms", 0)) / 1000)
        waits.append(float(headers.get("retry-after-ms", 0)) / 1000)
        waits.append(float(headers.get("retry-after", 0)))
    except (TypeError, ValueError):
        pass  # A date, or nonsense: the back-off is wait enough.
    return max(waits)


class Transport:
    """The server's API: JSON in and out, under a token, repeated until it is answered."""

    def __init__(self, url: str, token: Optional[str], timeout: float, backoff: Backoff):
        self.url, self.timeout, self.backoff = url.rstrip("/"), timeout, backoff
        self.headers = {"content-type": "application/json", "accept": "application/json"}
        if token:
            self.headers["authorization"] = f"Bearer {token}"

    def post(self, path: str, body: Mapping[str, Any], *, timeout: Optional[float] = None,
             limit: Optional[float] = -1.0, stop: Optional[threading.Event] = None) -> Mapping[str, Any]:
        """Posts until there is an answer. Only for requests that are safe to repeat, which all of this package are."""
        encoded = json.dumps(body, separators=(",", ":")).encode()
        limit = self.backoff.limit if limit == -1.0 else limit
        end = None if limit is None else time.monotonic() + limit
        tries = 0
        while True:
            wait = self.backoff.wait(tries)
            try:
                status, headers, answer = exchange("POST", self.url + path, self.headers, encoded,
                                                   timeout or self.timeout)
            except (OSError, HTTPException) as error:
                failure: Exception = error
            else:
                said = document(headers, answer)
                if status < 300 and said:
                    return said
                if status >= 300 and not is_retryable(status, said):
                    raise Problem(status, said)
                failure = Problem(status, said) if status >= 300 else ValueError("the answer is not JSON")
                wait = max(wait, asked_wait(headers, said))
            tries += 1
            if end is not None and time.monotonic() + wait > end:
                raise Unanswered(f"no answer after {tries} tries, the last: {failure}") from failure
            if stop is None:
                time.sleep(wait)
            elif stop.wait(wait):
                raise Unanswered(f"stopped after {tries} tries, the last: {failure}") from failure
