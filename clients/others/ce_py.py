"""The CloudEvents SDK of Python: publishes in each mode."""
import json
import sys

import requests
from cloudevents.v1.conversion import to_dict
from cloudevents.v1.http import CloudEvent, to_binary, to_structured

ask = json.load(sys.stdin)
url = ask["url"] + "/v1/queues/jobs/events"
for mode in ("binary", "structured", "batched"):
    attributes = {"id": f"{ask['label']}-{mode}", "source": "/shop", "type": "order", "subject": "Zürich 100% sure"}
    event = CloudEvent(attributes, {"euro": 17})
    if mode == "batched":
        headers, body = {"content-type": "application/cloudevents-batch+json"}, json.dumps([json.loads(to_structured(event)[1])])
    else:
        headers, body = (to_binary if mode == "binary" else to_structured)(event)
    headers = {name: value.encode("utf-8") if isinstance(value, str) else value for name, value in headers.items()}
    answer = requests.post(url, data=body, headers=headers, timeout=30)
    print(json.dumps({"client": "cloudevents (PyPI)", "case": f"{mode}: accepted", "ok": answer.status_code == 202, "note": answer.text}))
