"""What can go wrong, and what a handler may say."""

from __future__ import annotations

from typing import Any, Mapping, Optional


class RedriveError(Exception):
    """Any error of this package."""


class Problem(RedriveError):
    """The server refused a request, with a problem document. Repeating it does not help."""

    def __init__(self, status: int, document: Mapping[str, Any]):
        self.status = status
        self.document = dict(document)
        self.code = str(document.get("code") or str(document.get("type", "")).rsplit(":", 1)[-1])
        self.detail = str(document.get("detail", ""))
        super().__init__(f"{status} {self.code}: {self.detail}")


class Unanswered(RedriveError):
    """No answer within the time limit. It is not known whether the request took effect: repeat it with the same id."""


class Retry(RedriveError):
    """Raised by a handler: a later attempt may succeed. `after` is the least wait in seconds."""

    def __init__(self, message: str = "", *, after: Optional[float] = None, code: Optional[str] = None,
                 executed: str = "unknown"):
        super().__init__(message)
        self.after, self.code, self.executed = after, code, executed


class Permanent(RedriveError):
    """Raised by a handler: no attempt will succeed, so the event becomes a dead letter."""

    def __init__(self, message: str = "", *, code: Optional[str] = None, executed: str = "unknown"):
        super().__init__(message)
        self.code, self.executed = code, executed


class Drop(RedriveError):
    """Raised by a handler: the event is not needed any more."""
