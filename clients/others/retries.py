"""requests with urllib3's Retry, urllib3 alone, httpx with tenacity."""
import json
import sys

import httpx
import requests
import tenacity
import urllib3
from requests.adapters import HTTPAdapter

url = json.load(sys.stdin)["url"] + "/v1/charges"
policy = urllib3.Retry(total=5, backoff_factor=0.1, status_forcelist=[502, 503, 504], allowed_methods=None)
session = requests.Session()
session.mount("http://", HTTPAdapter(max_retries=policy))
session.trust_env = False


@tenacity.retry(stop=tenacity.stop_after_attempt(5), wait=tenacity.wait_random_exponential(max=1),
                retry=tenacity.retry_if_result(lambda answer: answer.status_code >= 500))
def by_httpx(body, headers):
    with httpx.Client(trust_env=False) as client:
        return client.post(url, content=body, headers=headers)


pool = urllib3.PoolManager(retries=policy)
stacks = {
    "requests": lambda body, headers: session.post(url, data=body, headers=headers, timeout=20).status_code,
    "urllib3": lambda body, headers: pool.request("POST", url, body=body, headers=headers, timeout=20).status,
    "httpx + tenacity": lambda body, headers: by_httpx(body, headers).status_code,
}
for client, send in stacks.items():
    for mode in ("ok", "busy", "cut"):
        try:
            status = send(f"mode={mode}&by={client}", {"idempotency-key": f"{client.split()[0]}-{mode}"})
        except Exception as error:
            status = repr(error)
        print(json.dumps({"client": client, "case": f"{mode}: answered", "ok": status == 200, "note": status}))
