"""Calls of a retry-safe API: one key for each call, kept over all tries."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, Mapping, Optional

from .errors import Problem, Unanswered
from .transport import Backoff, asked_wait, document, exchange, is_retryable


@dataclass(frozen=True)
class Reply:
    """The answer of the API. `replayed` says that it is the stored first one."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    key: str

    @property
    def replayed(self) -> bool:
        return self.headers.get("idempotent-replayed") == "true"

    def json(self) -> Any:
        return json.loads(self.body)


class IdempotentClient:
    """Sends requests behind a gateway or a layer of Redrive, and understands its answers.

    A call is repeated under its key while repeating helps: no answer, `retryable: true`, 408, 425, 429, 5xx. A problem
    document that is not retryable is raised as `Problem`; `outcome-unknown` and `key-reused` are among them. Every other
    answer is the API's own, and is returned whatever its status.
    """

    def __init__(self, *, headers: Optional[Mapping[str, str]] = None, timeout: float = 30.0,
                 backoff: Backoff = Backoff(), wait: Optional[int] = 10):
        self.headers, self.timeout, self.backoff, self.wait = dict(headers or {}), timeout, backoff, wait

    def request(self, method: str, url: str, *, body: Optional[bytes] = None, data: Any = None,
                headers: Optional[Mapping[str, str]] = None, key: Optional[str] = None) -> Reply:
        """One call. Without a `key`, one is minted; give your own if the intent outlives this process."""
        key = key or str(uuid.uuid4())
        sent = {"idempotency-key": f'"{key}"', **{k.lower(): v for k, v in {**self.headers, **(headers or {})}.items()}}
        if data is not None:
            body = json.dumps(data, separators=(",", ":")).encode()
            sent.setdefault("content-type", "application/json")
        if self.wait:
            sent.setdefault("prefer", f"wait={self.wait}")
        end = None if self.backoff.limit is None else time.monotonic() + self.backoff.limit
        tries = 0
        while True:
            wait = self.backoff.wait(tries)
            try:
                status, fields, answer = exchange(method, url, sent, body, self.timeout)
            except (OSError, HTTPException) as error:
                failure: Exception = error
            else:
                is_problem = "problem+json" in fields.get("content-type", "")
                said = document(fields, answer) if is_problem else {}
                # A stored answer does not change.
                final = fields.get("idempotent-replayed") == "true" or fields.get("redrive-no-retry") == "1"
                in_progress = status == 409 and "retry-after" in fields and "retryable" not in said
                if final or not (is_retryable(status, said) or in_progress):
                    if status >= 400 and "retryable" in said and not final:
                        raise Problem(status, said)
                    return Reply(status, fields, answer, key)
                failure = Problem(status, said)
                wait = max(wait, asked_wait(fields, said))
            tries += 1
            if end is not None and time.monotonic() + wait > end:
                raise Unanswered(f"key {key}: no answer after {tries} tries, the last: {failure}") from failure
            time.sleep(wait)

    def post(self, url: str, data: Any = None, **more: Any) -> Reply:
        return self.request("POST", url, data=data, **more)
