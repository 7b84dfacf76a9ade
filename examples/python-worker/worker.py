#!/usr/bin/env python3
"""A worker that fetches events from a Redrive server and says what became of them.

It needs Python 3.9 and nothing else. `work` is the part to replace; the rest leases events, keeps the leases good
while it works, and settles them. See README.md beside it.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request


class Permanent(Exception):
    """Trying again will not help."""


def work(job):
    """Does the work. A `Permanent` makes it a dead letter; any other error is tried again, as the queue's policy says.

    An attempt may be made twice: give `job["idempotency_key"]` to whatever you call, it is the same each time.
    """
    order = json.loads(job["payload"])
    attempt = job["attempt"]
    if order.get("bad"):
        raise Permanent("there is no such article")
    if attempt <= order.get("fails", 0):
        raise ConnectionError("the warehouse does not answer")
    if attempt <= order.get("stuck", 0):
        time.sleep(3600)
    return f"shipped {job['id']}"


class Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: urllib would carry the token along, to whatever host the answer names."""

    def redirect_request(self, *_):
        return None


class Server:
    """The leases of one queue."""

    opener = urllib.request.build_opener(Stay)

    def __init__(self, url, token, queue):
        self.base = f"{url.rstrip('/')}/v1/queues/{queue}/leases"
        self.token = token

    def lease(self, count, lease, wait):
        """Up to so many events; an empty list when there is none after `wait` seconds."""
        ask = {"max": count, "lease": f"{lease}s", "wait": f"{wait}s"}
        return self.post("", ask, timeout=wait + 30)["leases"]

    def extend(self, jobs, lease):
        return self.post("/extend", {"leases": [held(job) for job in jobs], "lease": f"{lease}s"})["results"]

    def settle(self, job, **said):
        """The same may be said twice: the second time the answer is `already`."""
        return self.post("/settle", {"leases": [{**held(job), **said}]})["results"][0]

    def post(self, path, body, timeout=30):
        """Posts until there is an answer that is final. A server that is away or busy is asked again."""
        headers = {"content-type": "application/json"}
        if self.token:
            headers["authorization"] = f"Bearer {self.token}"
        request = urllib.request.Request(self.base + path, json.dumps(body).encode(), headers)
        while True:
            try:
                with self.opener.open(request, timeout=timeout) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                if error.code in range(300, 400):
                    sys.exit(f"worker: {error.code}: the server redirects elsewhere; name that server with --url")
                if error.code not in (408, 429, 503):
                    sys.exit(f"worker: {error.code}: {json.load(error).get('detail')}")
                pause = int(error.headers.get("retry-after", 1))
            except OSError as error:
                print(f"worker: {error}; trying again", file=sys.stderr)
                pause = 1
            time.sleep(pause)


def held(job):
    """What proves that a lease is ours."""
    return {name: job[name] for name in ("id", "tenant", "attempt", "token")}


class Heart:
    """Keeps leases good for longer while their work goes on."""

    def __init__(self, server, lease):
        self.server, self.lease, self.jobs = server, lease, {}
        threading.Thread(target=self.beat, daemon=True).start()

    def beat(self):
        while True:
            time.sleep(self.lease / 3)
            jobs = list(self.jobs.values())
            if jobs:
                self.server.extend(jobs, self.lease)


def attempt(server, job):
    """One attempt, and what is said of it."""
    print(f"begins {job['id']} at attempt {job['attempt']}", flush=True)
    try:
        said = {"disposition": "ok", "result": work(job)}
    except Permanent as error:
        said = {"disposition": "permanent", "executed": "no", "error": told(error)}
    except Exception as error:  # whatever it is, the queue's policy decides how often it is tried again
        said = {"disposition": "retry", "error": told(error)}
    answer = server.settle(job, **said)
    print(f"{said['disposition']} {job['id']} at attempt {job['attempt']}: {answer['result']}", flush=True)


def told(error):
    return {"kind": type(error).__name__, "message": str(error)}


def main():
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("queue")
    flags.add_argument("--url", default=os.environ.get("REDRIVE_URL", "http://127.0.0.1:7070"))
    flags.add_argument("--lease", type=float, default=30, help="seconds that a lease is good for")
    flags.add_argument("--wait", type=float, default=30, help="seconds to wait for events")
    flags.add_argument("--count", type=int, default=5, help="events to lease at once")
    flags = flags.parse_args()
    server = Server(flags.url, os.environ.get("REDRIVE_TOKEN"), flags.queue)
    heart = Heart(server, flags.lease)
    state = {"busy": False, "stopping": False}

    def stop(_signal, _frame):
        """Ends a wait at once, and work when it is done. A second signal ends it all."""
        if not state["busy"] or state["stopping"]:
            sys.exit(0)
        state["stopping"] = True

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    while not state["stopping"]:
        jobs = server.lease(flags.count, flags.lease, flags.wait)
        state["busy"] = True
        heart.jobs = {job["token"]: job for job in jobs}
        for job in jobs:
            if state["stopping"]:
                # Not begun, so nothing was executed, and another worker may have it at once.
                server.settle(job, say="retry", executed="no", error={"kind": "Stopped", "message": "not begun"})
            else:
                attempt(server, job)
            heart.jobs = {token: other for token, other in heart.jobs.items() if other is not job}
        state["busy"] = False


if __name__ == "__main__":
    main()
