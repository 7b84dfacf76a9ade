/** Verifying the signature of a push (Standard Webhooks). */

import { createHmac, timingSafeEqual } from "node:crypto";

import { InvalidSignature } from "./errors.js";

type HeadersOf = Headers | Record<string, string | string[] | undefined>;

function field(headers: HeadersOf, name: string): string {
  const found = headers instanceof Headers ? headers.get(name) : Object.entries(headers).find(([known]) => known.toLowerCase() === name)?.[1];
  if (typeof found !== "string") throw new InvalidSignature(`the header ${name} is missing`);
  return found;
}

/**
 * Checks that one of the secrets signed this request, and returns its `webhook-id`, by which to dedupe. A secret is
 * base64, with `whsec_` before it or without. Give the raw body, before anything parses it.
 */
export function verify(
  secrets: string | string[],
  headers: HeadersOf,
  body: string | Uint8Array,
  { toleranceMs = 300_000, now = Date.now() } = {},
): string {
  const [id, timestamp, signatures] = [field(headers, "webhook-id"), field(headers, "webhook-timestamp"), field(headers, "webhook-signature")];
  if (!/^[0-9]{1,15}$/.test(timestamp)) throw new InvalidSignature("webhook-timestamp is not a number");
  if (Math.abs(now - Number(timestamp) * 1000) > toleranceMs) throw new InvalidSignature("webhook-timestamp is too far from this clock");
  const given = signatures.split(" ").filter((one) => one.startsWith("v1,")).map((one) => Buffer.from(one.slice(3)));
  for (const secret of typeof secrets === "string" ? [secrets] : secrets) {
    const key = Buffer.from(secret.trim().replace(/^whsec_/, ""), "base64");
    const expected = Buffer.from(createHmac("sha256", key).update(`${id}.${timestamp}.`).update(body).digest("base64"));
    // All are compared, each in constant time.
    const matches = given.map((one) => one.length === expected.length && timingSafeEqual(one, expected));
    if (matches.includes(true)) return id;
  }
  throw new InvalidSignature("no signature matches");
}
