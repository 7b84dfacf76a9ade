/** A client of Redrive's HTTP API, with `fetch` and `node:crypto` alone. */

export { Client, type Event, type Lease, type Published, type Settle, type SettleResult } from "./client.js";
export { Drop, InvalidSignature, Permanent, Problem, Retry, Unanswered } from "./errors.js";
export { IdempotentClient, type Reply } from "./idempotent.js";
export { type Backoff } from "./transport.js";
export { verify } from "./webhook.js";
export { Worker, type Handler } from "./worker.js";
