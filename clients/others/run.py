"""Clients that others wrote against the program: a table of client and result, and 1 if one surprises."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

import stage

HERE = pathlib.Path(__file__).parent
TOOLS = pathlib.Path(os.environ["CLIENTS_TOOLS"])
PYTHON, NODE = str(TOOLS / "py/bin/python"), "node"


class Table:
    def __init__(self):
        self.rows = []

    def add(self, client, case, ok, note=""):
        self.rows.append((client, case, bool(ok)))
        mark = "ok" if ok else "SURPRISE"
        print(f"{client:<34} {case:<44} {mark}{'  ' + str(note) if note and not ok else ''}", flush=True)

    def child(self, client, words, ask):
        """Runs a script of a client: JSON in, lines of `case`, `ok`, `note` out."""
        try:
            done = subprocess.run(words, input=json.dumps(ask), capture_output=True, text=True, timeout=180, cwd=TOOLS / "work")
        except (OSError, subprocess.TimeoutExpired) as error:
            return self.add(client, "runs", False, error)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        for line in lines:
            self.add(line.get("client", client), line["case"], line["ok"], line.get("note", ""))
        if done.returncode or not lines:
            self.add(client, "runs", False, (done.stderr or done.stdout)[-1500:])


def script(name):
    """A script, run where the packages are."""
    if name.endswith(".py"):
        return [PYTHON, str(HERE / name)]
    made = TOOLS / "work" / name
    made.write_text((HERE / name).read_text())
    return [NODE, str(made)]


def webhooks(table):
    """Five verifiers, with a secret that rotates."""
    receiver = stage.Receiver()
    server = stage.Program("serve", f"""
server.listen = "127.0.0.1:0"
store.address = "sqlite:FOLDER/redrive.db"
secrets.key_file = "FOLDER/key"
push.allow = ["127.0.0.0/8"]
[queues.orders.push]
url = "http://{receiver.address}/hook"
secret = "orders"
""".replace("FOLDER", "FOLDER"), folder=keyed_folder())
    try:
        old = server.run("secret", "set", "orders").split("whsec_")[1].split()[0]
        asks = []

        def pushed(id, payload, secrets):
            server.post("/v1/queues/orders/events", {"id": id, **payload})
            headers, body = receiver.next()
            asks.append({"headers": headers, "body": body.decode(), "secrets": secrets})

        pushed("first", {"payload": {"text": "Zürich 😀"}}, [old])
        pushed("empty", {}, [old])
        new = server.run("secret", "rotate", "orders", "--keep-old", "1day").split("whsec_")[1].split()[0]
        pushed("rotated", {"payload": [1, 2]}, [old, new])
        for name in ("webhooks.py", "webhooks.mjs"):
            table.child(name, script(name), asks)
        go(table, "webhooks", asks)
    finally:
        server.stop()


def keyed_folder():
    import tempfile
    folder = tempfile.mkdtemp(prefix="redrive-clients-")
    subprocess.run([stage.PROGRAM, "secret", "key", f"{folder}/key"], check=True, capture_output=True)
    return folder


def cloudevents(table):
    """Three SDKs: odd attributes, three modes, there and back."""
    receiver = stage.Receiver()
    server = stage.Program("serve", f"""
server.listen = "127.0.0.1:0"
store.address = "sqlite:FOLDER/redrive.db"
push.allow = ["127.0.0.0/8"]
[queues.jobs.pull]
[queues.binary.push]
url = "http://{receiver.address}/"
[queues.structured.push]
url = "http://{receiver.address}/"
format = "structured"
""")
    try:
        names = ("cloudevents.py", "cloudevents.mjs") + (("go",) if (TOOLS / "go-clients").exists() else ())
        for name in names:
            ask = {"url": server.url, "label": name}
            if name == "go":
                go(table, "cloudevents", ask)
            else:
                table.child(name, script("ce_" + name.split(".")[1] + "." + name.split(".")[1]), ask)
            # What was sent with odd attributes is leased with them.
            leased = {}
            while True:
                found = server.post("/v1/queues/jobs/leases", {"max": 100, "wait": "0s"})["leases"]
                if not found:
                    break
                leased.update({one["cloudevent"]["id"]: one["cloudevent"] for one in found})
            for mode in ("binary", "structured", "batched"):
                got = leased.get(f"{name}-{mode}", {})
                odd = got.get("subject")
                table.add(f"cloudevents ({name})", f"{mode}: attributes arrive", odd == "Zürich 100% sure", got or "lost")
        pushes = []
        for queue in ("binary", "structured"):
            event = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "t", "subject": "Zürich 100% sure",
                     "count": 7, "datacontenttype": "application/json", "data": {"euro": 17}}
            request = stage.urllib.request.Request(f"{server.url}/v1/queues/{queue}/events", json.dumps(event).encode(),
                                                   {"content-type": "application/cloudevents+json"})
            stage.urllib.request.urlopen(request, timeout=30).close()
            headers, body = receiver.next()
            pushes.append({"queue": queue, "headers": headers, "body": body.decode()})
        for name in ("ce_back.py", "ce_back.mjs"):
            table.child(name, script(name), pushes)
    finally:
        server.stop()


def gateway(bank, route):
    return stage.Program("gateway", f"""
store.address = "sqlite:FOLDER/ledger.db"
gateway.listen = "127.0.0.1:0"
gateway.upstream = "http://{bank.address}"
[[gateway.routes]]
match = "POST /{{*path}}"
tenant = "acme"
principal = "none"
{route}
""")


def stripe(table):
    """Stripe's SDKs: no call resolves as a success that was none, and no charge happens twice."""
    for effects, route in (("keyed", 'effects = "keyed"\nwait = "10s"'), ("hold", 'effects = "opaque"\nwait = "10s"')):
        bank = stage.Bank()
        gate = gateway(bank, route)
        try:
            for name in ("stripe_py.py", "stripe_js.mjs"):
                table.child(name, script(name), {"url": gate.url, "effects": effects, "label": name})
            twice = {body: count for body, count in bank.charges.items() if count > 1}
            table.add("stripe", f"{effects}: no charge twice", not twice, twice)
        finally:
            gate.stop()


def retries(table):
    """Stacks of HTTP clients and retries, each with one key a call."""
    bank = stage.Bank()
    gate = gateway(bank, 'effects = "keyed"\nwait = "10s"')
    try:
        for name in ("retries.py", "retries.mjs"):
            table.child(name, script(name), {"url": gate.url})
        for mode in ("ok", "busy", "cut"):
            done = subprocess.run(
                ["curl", "-s", "-w", "%{http_code}", "--retry", "5", "--retry-all-errors", "--retry-delay", "1",
                 "-H", f"idempotency-key: curl-{mode}", "-d", f"mode={mode}&by=curl", f"{gate.url}/v1/charges"],
                capture_output=True, text=True, timeout=60)
            table.add("curl", f"{mode}: answered", done.stdout.endswith("200"), done.stdout)
        go(table, "retries", {"url": gate.url})
        twice = {body: count for body, count in bank.charges.items() if count > 1}
        table.add("all stacks", "no charge twice", not twice, twice)
    finally:
        gate.stop()


def generated(table):
    """Validators, and clients generated from the document."""
    server = stage.Program("serve", """
server.listen = "127.0.0.1:0"
store.address = "sqlite:FOLDER/redrive.db"
[queues.jobs.pull]
[queues.jobs.policy]
attempts = 1
[queues.go.pull]
[queues.go.policy]
attempts = 1
""")
    try:
        with stage.urllib.request.urlopen(f"{server.url}/openapi.json", timeout=30) as served:
            document = TOOLS / "work/openapi.json"
            document.write_bytes(served.read())

        def tool(client, case, *words):
            environment = {**os.environ, "PATH": f"{TOOLS}/py/bin:{os.environ['PATH']}"}
            done = subprocess.run(words, capture_output=True, text=True, timeout=300, cwd=TOOLS / "work", env=environment)
            table.add(client, case, done.returncode == 0, (done.stdout + done.stderr)[-1500:])

        tool("openapi-spec-validator", "no error", PYTHON, "-m", "openapi_spec_validator", "openapi.json")
        (TOOLS / "work/spectral.yaml").write_text('extends: ["spectral:oas"]\n')
        tool("spectral", "no error", "node", str(TOOLS / "npm/node_modules/.bin/spectral"), "lint", "-r", "spectral.yaml", "-D", "openapi.json")
        tool("openapi-typescript", "generates", "node", str(TOOLS / "npm/node_modules/.bin/openapi-typescript"), "openapi.json", "-o", "redrive.d.ts")
        tool("openapi-typescript", "compiles", "node", str(TOOLS / "npm/node_modules/.bin/tsc"), "--noEmit", "--strict", "redrive.d.ts")
        tool("openapi-python-client", "generates", str(TOOLS / "py/bin/openapi-python-client"), "generate", "--path", "openapi.json",
             "--meta", "none", "--overwrite", "--output-path", "generated_client")
        table.child("openapi-python-client", script("generated.py"), {"url": server.url})
        made = TOOLS / "work/go-generated"
        (made / "api").mkdir(parents=True, exist_ok=True)
        for name in ("main.go", "go.mod", "go.sum"):
            (made / name).write_text((HERE / "go-generated" / name).read_text())
        tool("oapi-codegen", "generates", str(TOOLS / "bin/oapi-codegen"), "-generate", "types,client", "-package", "api",
             "-o", "go-generated/api/api.go", "openapi.json")
        tool("oapi-codegen", "compiles", "go", "build", "-C", str(made), "-o", str(made / "client"), ".")
        table.child("oapi-codegen", [str(made / "client")], {"url": server.url})
    finally:
        server.stop()


def go(table, what, ask):
    """The Go clients are one program, if the tools have it."""
    program = TOOLS / "go-clients"
    if program.exists():
        table.child(f"go {what}", [str(program), what], ask)
    else:
        print(f"{'go ' + what:<34} {'not built: no Go here':<44} -", flush=True)


CAMPAIGNS = {"webhooks": webhooks, "cloudevents": cloudevents, "stripe": stripe, "retries": retries, "generated": generated}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("campaigns", nargs="*", choices=[*CAMPAIGNS, []], help="all by default")
    asked = parser.parse_args().campaigns or list(CAMPAIGNS)
    (TOOLS / "work").mkdir(exist_ok=True)
    link = TOOLS / "work/node_modules"
    if not link.exists():
        link.symlink_to(TOOLS / "npm/node_modules")
    table, began = Table(), time.monotonic()
    for name in asked:
        CAMPAIGNS[name](table)
    bad = [row for row in table.rows if not row[2]]
    print(f"\n{len(table.rows)} checks, {len(bad)} surprises, {time.monotonic() - began:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
