/** Calls of a retry-safe API: one key for each call, kept over all tries. */

import { randomUUID } from "node:crypto";

import { Problem, Unanswered } from "./errors.js";
import { USUAL, document, isRetryable, untilAnswered, type Backoff } from "./transport.js";

/** The answer of the API. `replayed` says that it is the stored first one. */
export interface Reply {
  status: number;
  headers: Headers;
  body: Uint8Array;
  key: string;
  replayed: boolean;
}

/**
 * Sends requests behind a gateway or a layer of Redrive, and understands its answers. A call is repeated under its key
 * while repeating helps. A problem document that is not retryable is thrown as a `Problem`, `outcome-unknown` and
 * `key-reused` among them; every other answer is the API's own, and is returned whatever its status.
 */
export class IdempotentClient {
  private readonly options: { headers: Record<string, string>; timeoutMs: number; backoff: Backoff; waitSeconds: number };

  constructor(options: { headers?: Record<string, string>; timeoutMs?: number; backoff?: Partial<Backoff>; waitSeconds?: number } = {}) {
    const { headers = {}, timeoutMs = 30_000, waitSeconds = 10 } = options;
    this.options = { headers, timeoutMs, waitSeconds, backoff: { ...USUAL, ...options.backoff } };
  }

  /** One call. Without a `key`, one is minted; give your own if the intent outlives this process. */
  async request(method: string, url: string, call: { body?: string | Uint8Array; data?: unknown; headers?: Record<string, string>; key?: string } = {}): Promise<Reply> {
    const { headers, timeoutMs, backoff, waitSeconds } = this.options;
    const key = call.key ?? randomUUID();
    const sent: Record<string, string> = { ...headers, ...call.headers, "idempotency-key": `"${key}"` };
    let { body } = call;
    if (call.data !== undefined) {
      body = JSON.stringify(call.data);
      sent["content-type"] ??= "application/json";
    }
    if (waitSeconds > 0) sent.prefer ??= `wait=${waitSeconds}`;
    try {
      return await untilAnswered<Reply>({ method, url, headers: sent, body, timeoutMs }, backoff, (answer) => {
        const isProblem = answer.headers.get("content-type")?.includes("problem+json") ?? false;
        const said = isProblem ? document(answer) : {};
        const replayed = answer.headers.get("idempotent-replayed") === "true";
        // A stored answer does not change.
        const isFinal = replayed || answer.headers.get("redrive-no-retry") === "1";
        const isInProgress = answer.status === 409 && answer.headers.has("retry-after") && !("retryable" in said);
        const problem = new Problem(answer.status, said);
        if (!isFinal && (isRetryable(answer.status, said) || isInProgress)) return { failure: problem };
        if (!isFinal && answer.status >= 400 && "retryable" in said) throw problem;
        return { done: { ...answer, key, replayed } };
      });
    } catch (error) {
      if (error instanceof Unanswered) throw new Unanswered(`key ${key}: ${error.message}`, { cause: error });
      throw error;
    }
  }

  post(url: string, data?: unknown, more: { headers?: Record<string, string>; key?: string } = {}): Promise<Reply> {
    return this.request("POST", url, { ...more, data });
  }
}
