"""A worker: leases events, runs a handler, extends leases meanwhile, and settles."""

from __future__ import annotations

import logging
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, Optional

from .client import Client, Lease
from .errors import Drop, Permanent, RedriveError, Retry, Unanswered

log = logging.getLogger("redrive_client")

Handler = Callable[[Lease], Any]


class Worker:
    """Runs `handler` for events of a queue, `concurrency` at a time, until it is stopped.

    A handler that returns has succeeded; bytes or a string are the event's result. `Retry`, `Permanent` and `Drop`
    say otherwise; any other exception is a retry. Delivery is at least once: make the effect depend on
    `lease.idempotency_key`, which is the same for all attempts.
    """

    def __init__(self, client: Client, queue: str, handler: Handler, *, concurrency: int = 4,
                 lease_seconds: float = 30.0, wait: str = "10s", tenant: Optional[str] = None):
        self.client, self.queue, self.handler = client, queue, handler
        self.concurrency, self.lease_seconds, self.wait, self.tenant = concurrency, lease_seconds, wait, tenant
        self._stop = threading.Event()

    def stop(self) -> None:
        """Takes no more events; those under way are finished and settled."""
        self._stop.set()

    def run(self, *, signals: bool = True) -> None:
        """Works until `stop`, or until SIGTERM or SIGINT if `signals`."""
        if signals:
            for name in (signal.SIGTERM, signal.SIGINT):
                signal.signal(name, lambda *_: self.stop())
        free = threading.Semaphore(self.concurrency)
        lease = f"{max(1, round(self.lease_seconds))}s"
        with ThreadPoolExecutor(self.concurrency) as pool:
            while not self._stop.is_set():
                if not free.acquire(timeout=0.2):
                    continue
                places = 1
                while places < self.concurrency and free.acquire(blocking=False):
                    places += 1
                leases = []
                try:
                    leases = self.client.lease(self.queue, max=places, lease=lease, wait=self.wait,
                                               tenant=self.tenant, stop=self._stop)
                except Unanswered:
                    pass  # It was stopped while the server did not answer.
                finally:
                    for _ in range(places - len(leases)):
                        free.release()
                for one in leases:
                    pool.submit(self._attempt, one).add_done_callback(lambda _: free.release())

    def _attempt(self, lease: Lease) -> None:
        done = threading.Event()
        extending = threading.Thread(target=self._extend, args=(lease, done), daemon=True)
        extending.start()
        try:
            said = self._outcome(lease)
        finally:
            done.set()
        try:
            result = self.client.settle(self.queue, [{**lease.held(), **said}])[0]
            if result["status"] != 200:
                log.warning("event %s: the settle is %s", lease.id, result["result"])
        except RedriveError as error:
            # The lease runs out, and the event is attempted again.
            log.warning("event %s could not be settled: %s", lease.id, error)

    def _outcome(self, lease: Lease) -> Dict[str, Any]:
        try:
            result = self.handler(lease)
        except Drop:
            return {"disposition": "drop"}
        except Permanent as error:
            return {"disposition": "permanent", "executed": error.executed, "error": failure(error, error.code)}
        except Retry as error:
            said = {"disposition": "retry", "executed": error.executed, "error": failure(error, error.code)}
            if error.after is not None:
                said["after"] = f"{round(error.after * 1000)}ms"
            return said
        except Exception as error:  # The handler's own, whatever it is.
            log.exception("the handler failed for event %s", lease.id)
            return {"disposition": "retry", "error": failure(error, None)}
        if isinstance(result, str):
            return {"disposition": "ok", "result": result}
        return {"disposition": "ok"}

    def _extend(self, lease: Lease, done: threading.Event) -> None:
        """Extends the lease every third of its time, while the handler runs."""
        while not done.wait(self.lease_seconds / 3):
            began = time.monotonic()
            try:
                result = self.client.extend(self.queue, [lease], f"{max(1, round(self.lease_seconds))}s")[0]
            except RedriveError as error:
                log.warning("the lease of event %s could not be extended (%.1f s): %s", lease.id,
                            time.monotonic() - began, error)
                continue
            if result["status"] != 200:
                return  # Done, or another worker's: the settle finds out.


def failure(error: Exception, code: Optional[str]) -> Dict[str, Any]:
    said: Dict[str, Any] = {"kind": type(error).__name__, "message": str(error)[:2000]}
    if code is not None:
        said["code"] = code
    return said
