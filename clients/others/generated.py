"""A client that openapi-python-client generated: publishes, leases, settles, lists and redrives."""
import json
import sys

sys.path.insert(0, ".")

from generated_client import Client
from generated_client.api.operate import events, redrive_one
from generated_client.api.publish import publish
from generated_client.api.pull import lease, settle
from generated_client.models import Ask, Event
from generated_client.models.redrive_one import RedriveOne
from generated_client.models.settles import Settles

client = Client(json.load(sys.stdin)["url"])


def say(case, ok, note=""):
    print(json.dumps({"client": "openapi-python-client", "case": case, "ok": bool(ok), "note": repr(note)}))


made = publish.sync(client=client, queue="jobs", body=Event(id="a", payload={"euro": 17}))
say("publishes", getattr(made, "id", None) == "a", made)
leased = lease.sync(client=client, queue="jobs", body=Ask(max_=1, wait="5s"))
one = leased.leases[0]
say("leases", one.id == "a" and one.attempt == 1, leased)
held = {"id": one.id, "attempt": one.attempt, "token": one.token, "disposition": "permanent"}
settled = settle.sync(client=client, queue="jobs", body=Settles.from_dict({"leases": [held]}))
say("settles", settled.results[0].status == 200, settled)
listed = events.sync_detailed(client=client)
say("lists", listed.status_code == 200, listed)
redriven = redrive_one.sync_detailed(client=client, queue="jobs", id="a", body=RedriveOne())
say("redrives", redriven.status_code == 200, redriven)
