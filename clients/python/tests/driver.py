"""The shared script of scenarios, for this library: see clients/README.md."""

import base64
import json
import os
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))

from redrive_client import (Backoff, Client, Event, IdempotentClient, InvalidSignature, Permanent, Problem, Retry,
                            Unanswered, Worker, verify)


def say(**line):
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def publish(url, queue, count):
    client = Client(url, timeout=10, backoff=Backoff(base=0.02, cap=0.3, limit=120))
    half = int(count) // 2
    for n in range(half):
        say(published=f"one-{n}", result=client.publish(queue, f"one-{n}", {"n": n}).result)
    for start in range(0, half, 10):
        events = [Event(f"many-{n}", {"n": n}) for n in range(start, min(start + 10, half))]
        for result in client.publish_many(queue, events):
            say(published=result.id, result=result.result)


def work(url, queue):
    tried, lock = set(), threading.Lock()

    def handle(lease):
        with lock:
            again = lease.idempotency_key in tried
            tried.add(lease.idempotency_key)
        if lease.id.endswith("7") and not again:
            raise Retry("the first time it is busy", code="503", after=0.01, executed="no")
        if lease.id == "poison":
            raise Permanent("never", code="422")
        say(effect=lease.id, key=lease.idempotency_key)

    client = Client(url, timeout=10, backoff=Backoff(base=0.02, cap=0.3, limit=120))
    Worker(client, queue, handle, lease_seconds=3, wait="1s").run()
    say(stopped=True)


def webhooks():
    for line in sys.stdin:
        ask = json.loads(line)
        try:
            verify(ask["secrets"], ask["headers"], base64.b64decode(ask["body"]), now=ask.get("now"))
            say(valid=True)
        except InvalidSignature as error:
            say(valid=False, why=str(error))


def call(url):
    client = IdempotentClient(timeout=10, backoff=Backoff(base=0.02, cap=0.3, limit=30))
    for line in sys.stdin:
        ask = json.loads(line)
        try:
            reply = client.request("POST", url + ask["path"], data=ask["data"], key=ask.get("key"))
            say(status=reply.status, replayed=reply.replayed, key=reply.key)
        except Problem as problem:
            say(problem=problem.code, status=problem.status)
        except Unanswered:
            say(unanswered=True)


if __name__ == "__main__":
    {"publish": publish, "work": work, "webhooks": webhooks, "call": call}[sys.argv[1]](*sys.argv[2:])
