"""Stripe's SDK for Python through the gateway."""
import json
import sys
from concurrent.futures import ThreadPoolExecutor

import stripe

ask = json.load(sys.stdin)
client = stripe.StripeClient("sk_test_1", base_addresses={"api": ask["url"]}, max_network_retries=4)


def charge(mode, key):
    """The id of the charge, or the error."""
    try:
        made = client.raw_request("post", "/v1/charges", description=f"{mode} {key} py", idempotency_key=key)
        return json.loads(made.body).get("id") or "NO ID"
    except stripe.StripeError as error:
        return error


def say(case, ok, note=""):
    print(json.dumps({"client": "stripe (PyPI)", "case": f"{ask['effects']}: {case}", "ok": ok, "note": repr(note)}))


keyed = ask["effects"] == "keyed"
made = charge("ok", "py-ok")
say("a charge is made", made == "ch_py-ok", made)
made = charge("cut", "py-cut")
say("a lost answer", made == "ch_py-cut" if keyed else isinstance(made, stripe.StripeError), made)
made = charge("running", "py-running")
say("the API's own in-flight", made == "ch_py-running" if keyed else isinstance(made, stripe.StripeError), made)
if keyed:
    made = charge("busy", "py-busy")
    say("503 first", made == "ch_py-busy", made)
else:
    made = charge("cut", "py-cut")
    say("unknown stays an error", isinstance(made, stripe.StripeError), made)
with ThreadPoolExecutor(4) as pool:
    all = list(pool.map(lambda _: charge("slow", "py-slow"), range(4)))
say("four at once", all == ["ch_py-slow"] * 4, all)
made = charge("other", "py-ok")
say("a used key is an error", isinstance(made, stripe.StripeError), made)
