// standardwebhooks and svix, from npm.
import { readFileSync } from "node:fs";
import { Webhook } from "standardwebhooks";
import { Webhook as Svix } from "svix";

const say = (line) => console.log(JSON.stringify(line));
for (const ask of JSON.parse(readFileSync(0, "utf8"))) {
  for (const [client, Kind] of [["standardwebhooks (npm)", Webhook], ["svix (npm)", Svix]]) {
    const id = ask.headers["redrive-id"];
    const check = (secret) => {
      try {
        new Kind(secret).verify(ask.body, ask.headers);
        return "";
      } catch (error) {
        // An empty body verifies, and is no JSON.
        return error instanceof SyntaxError && ask.body === "" ? "" : String(error);
      }
    };
    ask.secrets.forEach((secret, n) => {
      const note = check("whsec_" + secret);
      say({ client, case: `${id}: secret ${n + 1}`, ok: note === "", note });
    });
    say({ client, case: `${id}: another secret is refused`, ok: check("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD") !== "" });
  }
}
