"""The CloudEvents SDK of Python reads pushes."""
import json
import sys
from urllib.parse import unquote

from cloudevents.v1.http import from_http

for push in json.load(sys.stdin):
    event = from_http(push["headers"], push["body"])
    # It does not percent-decode headers, so a binary push needs the structured form where attributes are odd.
    subject = unquote(event["subject"]) if push["queue"] == "binary" else event["subject"]
    got = (subject, event.data, event["source"])
    ok = got == ("Zürich 100% sure", {"euro": 17}, "/shop") and str(event["count"]) == "7"
    typed = push["queue"] == "binary" or event["count"] == 7
    print(json.dumps({"client": "cloudevents (PyPI)", "case": f"{push['queue']} push: read back", "ok": ok and typed, "note": repr(event)}))
