"""A client of Redrive's HTTP API. The standard library is all it needs.

    from redrive_client import Client, Worker

    client = Client("http://127.0.0.1:7070")
    client.publish("orders", "order-17", {"cabins": 2})
    Worker(client, "orders", handle).run()
"""

from .client import Client, Event, Lease, Published
from .errors import Permanent, Problem, RedriveError, Retry, Unanswered, Drop
from .idempotent import IdempotentClient, Reply
from .transport import Backoff
from .webhook import InvalidSignature, verify
from .worker import Worker

__all__ = [
    "Backoff",
    "Client",
    "Drop",
    "Event",
    "IdempotentClient",
    "InvalidSignature",
    "Lease",
    "Permanent",
    "Problem",
    "Published",
    "RedriveError",
    "Reply",
    "Retry",
    "Unanswered",
    "Worker",
    "verify",
]
