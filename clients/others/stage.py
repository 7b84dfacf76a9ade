"""The program, the API behind its gateway, and a receiver of pushes: what the clients that others wrote meet."""

import json
import os
import pathlib
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PROGRAM = os.environ["CLIENTS_PROGRAM"]


class Program:
    """`redrive serve` or `redrive gateway` in a folder of its own."""

    def __init__(self, command, settings, folder=None):
        self.folder = pathlib.Path(folder or tempfile.mkdtemp(prefix="redrive-clients-"))
        config = self.folder / f"{command}.toml"
        config.write_text(settings.replace("FOLDER", str(self.folder)))
        self.config = config
        environment = {**os.environ, "REDRIVE_OBSERVE_LOG_FORM": "text"}
        self.process = subprocess.Popen([PROGRAM, command, "--config", str(config)], stderr=subprocess.PIPE,
                                        stdout=subprocess.DEVNULL, text=True, env=environment)
        self.url, self.said = None, []
        for line in self.process.stderr:
            self.said.append(line)
            if "listening on http://" in line:
                self.url = "http://" + line.split("listening on http://")[1].split()[0].rstrip(",")
                break
        if self.url is None:
            raise RuntimeError("the program does not start:\n" + "".join(self.said))
        threading.Thread(target=lambda: [None for _ in self.process.stderr], daemon=True).start()

    def run(self, *words):
        done = subprocess.run([PROGRAM, *words, "--url", self.url], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{words}: {done.stderr}")
        return done.stdout

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(),
                                         {"content-type": "application/json"}, method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def lease(self, queue, wait="10s"):
        return self.post(f"/v1/queues/{queue}/leases", {"wait": wait})["leases"][0]

    def stop(self):
        self.process.terminate()
        self.process.wait(30)


class Listener:
    """An HTTP server whose answers a function gives: `answer(handler, body)`."""

    def __init__(self, answer):
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                answer(self, body)

            do_GET = do_POST

            def log_message(self, *_):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass  # A cut connection is what a scenario asks for.

        self.server = Server(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def answer(handler, status, body=b"", headers=()):
    handler.send_response(status)
    for name, value in headers:
        handler.send_header(name, value)
    handler.send_header("content-length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def cut(handler):
    """The connection is lost before a word of the answer."""
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)


class Receiver:
    """Keeps what is pushed."""

    def __init__(self):
        self.got, self.news = [], threading.Condition()

        def take(handler, body):
            with self.news:
                self.got.append(({name.lower(): value for name, value in handler.headers.items()}, body))
                self.news.notify_all()
            answer(handler, 200)

        self.listener = Listener(take)
        self.address = self.listener.address

    def next(self, timeout=30):
        end = time.monotonic() + timeout
        with self.news:
            while not self.got:
                if not self.news.wait(end - time.monotonic()):
                    raise RuntimeError("nothing was pushed")
            return self.got.pop(0)


class Bank:
    """An API that honours `Idempotency-Key`, and fails as the request's `mode` says.

    `cut`: the charge happens, and the first answer is lost. `busy`: the first try is 503 and charges nothing. `slow`: it
    takes a second. `running`: charged, but the second try meets a 409 with `Retry-After`.
    """

    def __init__(self):
        self.lock, self.seen, self.charges = threading.Lock(), {}, {}
        self.listener = Listener(self.charge)
        self.address = self.listener.address

    def charge(self, handler, body):
        key = (handler.headers.get("idempotency-key") or "").strip('"')
        text = body.decode()
        mode = next((mode for mode in ("cut", "busy", "slow", "running") if mode in text), "ok")
        with self.lock:
            tries = self.seen[key] = self.seen.get(key, 0) + 1
            if mode == "busy" and tries == 1:
                return answer(handler, 503, b"{}", [("content-type", "application/json")])
            if mode == "running" and tries == 2:
                error = {"error": {"type": "idempotency_error", "message": "still running"}}
                return answer(handler, 409, json.dumps(error).encode(),
                              [("content-type", "application/json"), ("retry-after", "0"), ("stripe-should-retry", "true")])
            # By the body, so that a key that is minted anew is seen as the second charge that it is.
            if tries == 1 or mode == "busy" and tries == 2:
                self.charges[text] = self.charges.get(text, 0) + 1
        if mode == "slow":
            time.sleep(1)
        if mode in ("cut", "running") and tries == 1:
            return cut(handler)
        charge = {"id": "ch_" + key[:24], "object": "charge", "amount": 1700}
        return answer(handler, 200, json.dumps(charge).encode(), [("content-type", "application/json")])
