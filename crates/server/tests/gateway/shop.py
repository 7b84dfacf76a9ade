"""An API that knows nothing of gateways: every POST is an order, and every order is a line in a file.

    python3 shop.py FILE [keyed]

With `keyed` it knows idempotency keys itself: an order of the same key is not taken twice. It says its port.
"""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TAKEN = {}


class Shop(BaseHTTPRequestHandler):
    def do_POST(self):
        order = self.rfile.read(int(self.headers["Content-Length"]))
        key = self.headers["Idempotency-Key"] if "keyed" in sys.argv else None
        if key is None or key not in TAKEN:
            with open(sys.argv[1], "ab") as orders:
                orders.write(order + b"\n")
            TAKEN[key] = order
        answer = b"taken: " + order
        self.send_response(201)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Shop)
print(server.server_port, flush=True)
server.serve_forever()
