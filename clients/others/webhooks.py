"""standardwebhooks and svix, from PyPI."""
import json
import sys

from standardwebhooks import Webhook
from svix.webhooks import Webhook as Svix

for ask in json.load(sys.stdin):
    for client, kind in (("standardwebhooks (PyPI)", Webhook), ("svix (PyPI)", Svix)):
        id = ask["headers"]["redrive-id"]
        for n, secret in enumerate(ask["secrets"]):
            for spelt in (secret, "whsec_" + secret):
                try:
                    # An empty body verifies, and is no JSON.
                    kind(spelt).verify(ask["body"], ask["headers"])
                    ok, note = True, ""
                except json.JSONDecodeError:
                    ok, note = ask["body"] == "", "no JSON"
                except Exception as error:
                    ok, note = False, repr(error)
                case = f"{id}: secret {n + 1}{' with prefix' if spelt != secret else ''}"
                print(json.dumps({"client": client, "case": case, "ok": ok, "note": note}))
        try:
            kind("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD").verify(ask["body"], ask["headers"])
            ok = False
        except json.JSONDecodeError:
            ok = False
        except Exception:
            ok = True
        print(json.dumps({"client": client, "case": f"{id}: another secret is refused", "ok": ok}))
