"""Publishing, leasing, settling."""

from __future__ import annotations

import base64
import json
import threading
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence
from urllib.parse import quote

from .transport import Backoff, Transport

#: Events of one request; the server's `batch_max` is larger.
BATCH = 500


@dataclass
class Event:
    """An event to publish. `id` is the identity of the intent: mint it once, and keep it over all tries."""

    id: str
    payload: Any = None
    key: Optional[str] = None
    tenant: Optional[str] = None
    content_type: Optional[str] = None
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: Optional[str] = None
    more: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> Dict[str, Any]:
        said: Dict[str, Any] = {"id": self.id, **self.more}
        if isinstance(self.payload, (bytes, bytearray)):
            said["payload_base64"] = base64.b64encode(bytes(self.payload)).decode()
        elif self.payload is not None:
            said["payload"] = self.payload
        for name in ("key", "tenant", "content_type", "delay"):
            if getattr(self, name) is not None:
                said[name] = getattr(self, name)
        if self.headers:
            said["headers"] = dict(self.headers)
        return said


@dataclass(frozen=True)
class Published:
    """What became of an event: `accepted`, `duplicate` with the state of the `first`, or `refused` with a `problem`."""

    id: Optional[str]
    result: str
    first: Optional[Mapping[str, Any]] = None
    problem: Optional[Mapping[str, Any]] = None

    @property
    def stored(self) -> bool:
        return self.result in ("accepted", "duplicate")


@dataclass(frozen=True)
class Lease:
    """The right to run one attempt of an event, until it is settled or its time is over."""

    id: str
    tenant: str
    attempt: int
    token: str
    idempotency_key: str
    document: Mapping[str, Any]

    @property
    def payload(self) -> bytes:
        encoded = self.document.get("payload_base64")
        if encoded is not None:
            return base64.b64decode(encoded)
        return str(self.document.get("payload", "")).encode()

    def json(self) -> Any:
        return json.loads(self.payload)

    @property
    def key(self) -> Optional[str]:
        return self.document.get("key")

    @property
    def headers(self) -> Sequence[Sequence[str]]:
        return self.document.get("headers", [])

    def held(self) -> Dict[str, Any]:
        return {"id": self.id, "tenant": self.tenant, "attempt": self.attempt, "token": self.token}


class Client:
    """A server. Threads may share it. Every request is repeated under the same ids until it is answered."""

    def __init__(self, url: str, token: Optional[str] = None, *, timeout: float = 30.0,
                 backoff: Backoff = Backoff()):
        self._transport = Transport(url, token, timeout, backoff)

    def publish(self, queue: str, id: str, payload: Any = None, **more: Any) -> Published:
        """Publishes one event. A `Problem` says that it is refused, `Unanswered` that its fate is not known."""
        return self.publish_event(queue, Event(id, payload, **more))

    def publish_event(self, queue: str, event: Event) -> Published:
        said = self._transport.post(f"/v1/queues/{quote(queue, safe='')}/events", event.document())
        return Published(said.get("id"), str(said["result"]), said.get("first"))

    def publish_many(self, queue: str, events: Iterable[Event]) -> List[Published]:
        """Publishes many events; a refused one does not hold up the others."""
        path = f"/v1/queues/{quote(queue, safe='')}/events"
        documents = [event.document() for event in events]
        results: List[Published] = []
        for start in range(0, len(documents), BATCH):
            said = self._transport.post(path, {"events": documents[start:start + BATCH]})
            results += [Published(one.get("id"), str(one["result"]), one.get("first"), one.get("problem"))
                        for one in said["results"]]
        return results

    def lease(self, queue: str, *, max: int = 1, lease: str = "30s", wait: str = "10s",
              tenant: Optional[str] = None, stop: Optional[threading.Event] = None) -> List[Lease]:
        """Leases up to `max` events, and waits for the first."""
        ask: Dict[str, Any] = {"max": max, "lease": lease, "wait": wait}
        if tenant is not None:
            ask["tenant"] = tenant
        path = f"/v1/queues/{quote(queue, safe='')}/leases"
        # A wait may be as long as the server lets it be; a lost answer costs the lease's time and no event.
        said = self._transport.post(path, ask, timeout=self._transport.timeout + 60, limit=None if stop else -1.0,
                                    stop=stop)
        return [Lease(str(one["id"]), str(one["tenant"]), int(one["attempt"]), str(one["token"]),
                      str(one["idempotency_key"]), one) for one in said["leases"]]

    def extend(self, queue: str, leases: Sequence[Lease], lease: str = "30s") -> List[Mapping[str, Any]]:
        """Extends leases by so long from now; one result each."""
        path = f"/v1/queues/{quote(queue, safe='')}/leases/extend"
        said = self._transport.post(path, {"leases": [one.held() for one in leases], "lease": lease}, limit=10.0)
        return list(said["results"])

    def settle(self, queue: str, settles: Sequence[Mapping[str, Any]]) -> List[Mapping[str, Any]]:
        """Commits outcomes: `{**lease.held(), "disposition": "ok"}`; one result each. Repeating a settle is safe."""
        path = f"/v1/queues/{quote(queue, safe='')}/leases/settle"
        return list(self._transport.post(path, {"leases": list(settles)})["results"])
