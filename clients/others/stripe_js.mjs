// Stripe's SDK for Node.js through the gateway.
import { readFileSync } from "node:fs";
import Stripe from "stripe";

const ask = JSON.parse(readFileSync(0, "utf8"));
const { hostname, port } = new URL(ask.url);
const stripe = new Stripe("sk_test_1", { host: hostname, port, protocol: "http", maxNetworkRetries: 4, telemetry: false });

async function charge(mode, idempotencyKey) {
  try {
    const made = await stripe.rawRequest("POST", "/v1/charges", { description: `${mode} ${idempotencyKey} js` }, { idempotencyKey });
    return made.id ?? "NO ID";
  } catch (error) {
    return error;
  }
}

const say = (name, ok, note) =>
  console.log(JSON.stringify({ client: "stripe (npm)", case: `${ask.effects}: ${name}`, ok, note: String(note) }));
const keyed = ask.effects === "keyed";
const isError = (made) => made instanceof Error;

let made = await charge("ok", "js-ok");
say("a charge is made", made === "ch_js-ok", made);
made = await charge("cut", "js-cut");
say("a lost answer", keyed ? made === "ch_js-cut" : isError(made), made);
made = await charge("running", "js-running");
say("the API's own in-flight", keyed ? made === "ch_js-running" : isError(made), made);
if (keyed) {
  made = await charge("busy", "js-busy");
  say("503 first", made === "ch_js-busy", made);
} else {
  made = await charge("cut", "js-cut");
  say("unknown stays an error", isError(made), made);
}
const all = await Promise.all([1, 2, 3, 4].map(() => charge("slow", "js-slow")));
say("four at once", all.every((made) => made === "ch_js-slow"), all);
made = await charge("other", "js-ok");
say("a used key is an error", isError(made), made);
