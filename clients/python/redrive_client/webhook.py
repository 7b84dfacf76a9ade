"""Verifying the signature of a push (Standard Webhooks)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from typing import Iterable, Mapping, Optional, Union

from .errors import RedriveError


class InvalidSignature(RedriveError):
    """The request is not what the server sent, or is too old. Answer 401."""


def verify(secrets: Union[str, Iterable[str]], headers: Mapping[str, str], body: bytes, *,
           tolerance: float = 300.0, now: Optional[float] = None) -> str:
    """Checks that one of the secrets signed this request, and returns its `webhook-id`, by which to dedupe.

    A secret is base64, with `whsec_` before it or without. Give the raw body, before anything parses it.
    """
    fields = {name.lower(): value for name, value in headers.items()}
    try:
        id, timestamp, signatures = (fields[f"webhook-{name}"] for name in ("id", "timestamp", "signature"))
    except KeyError as missing:
        raise InvalidSignature(f"the header {missing.args[0]} is missing") from None
    if not timestamp.isascii() or not timestamp.isdigit():
        raise InvalidSignature("webhook-timestamp is not a number")
    if abs((time.time() if now is None else now) - int(timestamp)) > tolerance:
        raise InvalidSignature("webhook-timestamp is too far from this clock")
    given = [one[3:].encode() for one in signatures.split(" ") if one.startswith("v1,")]
    content = f"{id}.{timestamp}.".encode() + body
    for secret in [secrets] if isinstance(secrets, str) else secrets:
        expected = base64.b64encode(hmac.new(decoded(secret), content, hashlib.sha256).digest())
        # All are compared, each in constant time.
        if any([hmac.compare_digest(expected, one) for one in given]):
            return id
    raise InvalidSignature("no signature matches")


def decoded(secret: str) -> bytes:
    text = secret.strip()
    text = text[len("whsec_"):] if text.startswith("whsec_") else text
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except binascii.Error as error:
        raise ValueError("a secret is base64, with `whsec_` before it or without") from error
