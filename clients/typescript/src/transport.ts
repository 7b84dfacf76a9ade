/** Requests that are repeated until they are answered. */

import { Problem, Unanswered } from "./errors.js";

/** Statuses that say that the same request may succeed later, where no document says otherwise. */
const RETRIED = new Set([408, 425, 429, 500, 502, 503, 504]);

/** Waits between two tries: exponential with full jitter, at most `capMs`, for `limitMs` in all. */
export interface Backoff {
  baseMs: number;
  capMs: number;
  /** `Infinity` repeats until there is an answer. */
  limitMs: number;
}

export const USUAL: Backoff = { baseMs: 100, capMs: 5_000, limitMs: 60_000 };

/** A whole answer. */
export interface Answer {
  status: number;
  headers: Headers;
  body: Uint8Array;
}

export interface Ask {
  method: string;
  url: string;
  headers: Record<string, string>;
  body?: string | Uint8Array | undefined;
  timeoutMs: number;
  signal?: AbortSignal | undefined;
}

/** Sends one request. Fails if there is no whole answer. */
async function exchange({ method, url, headers, body, timeoutMs, signal }: Ask): Promise<Answer> {
  const late = AbortSignal.timeout(timeoutMs);
  const either = signal ? AbortSignal.any([signal, late]) : late;
  const init: RequestInit = { method, headers, redirect: "manual", signal: either };
  if (body !== undefined) init.body = body as NonNullable<RequestInit["body"]>;
  const answer = await fetch(url, init);
  return { status: answer.status, headers: answer.headers, body: new Uint8Array(await answer.arrayBuffer()) };
}

/** The JSON object of an answer, or nothing. */
export function document({ headers, body }: Answer): Record<string, unknown> {
  if (!headers.get("content-type")?.includes("json")) return {};
  try {
    const read: unknown = JSON.parse(new TextDecoder().decode(body));
    return typeof read === "object" && read !== null && !Array.isArray(read) ? (read as Record<string, unknown>) : {};
  } catch {
    return {};
  }
}

/** Whether the same request may succeed later: as the document says, or by its status. */
export function isRetryable(status: number, said: Record<string, unknown>): boolean {
  return typeof said.retryable === "boolean" ? said.retryable : RETRIED.has(status);
}

/** How long the answer asks to wait. */
function askedWaitMs(headers: Headers, said: Record<string, unknown>): number {
  const waits = [Number(said.retry_after_ms), Number(headers.get("retry-after-ms")), Number(headers.get("retry-after")) * 1000];
  // A date, or nonsense: the back-off is wait enough.
  return Math.max(0, ...waits.filter(Number.isFinite));
}

/** Waits, unless it is stopped. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(done, ms);
    function done() {
      clearTimeout(timer);
      signal?.removeEventListener("abort", done);
      resolve();
    }
    signal?.addEventListener("abort", done);
    if (signal?.aborted) done();
  });
}

/** Sends a request until `read` takes an answer. Only for requests that are safe to repeat. */
export async function untilAnswered<T>(ask: Ask, backoff: Backoff, read: (answer: Answer) => { done: T } | { failure: Error }): Promise<T> {
  const end = Date.now() + backoff.limitMs;
  for (let tries = 0; ; tries++) {
    let wait = Math.random() * Math.min(backoff.capMs, backoff.baseMs * 2 ** Math.min(tries, 30));
    let failure: unknown;
    try {
      const answer = await exchange(ask);
      const result = read(answer);
      if ("done" in result) return result.done;
      failure = result.failure;
      wait = Math.max(wait, askedWaitMs(answer.headers, document(answer)));
    } catch (error) {
      if (error instanceof Problem) throw error;
      failure = error;
    }
    if (ask.signal?.aborted || Date.now() + wait > end) {
      throw new Unanswered(`no answer after ${tries + 1} tries, the last: ${String(failure)}`, { cause: failure });
    }
    await sleep(wait, ask.signal);
  }
}

/** The server's API: JSON in and out, under a token, repeated until it is answered. */
export class Transport {
  constructor(readonly url: string, readonly token: string | undefined, readonly timeoutMs: number, readonly backoff: Backoff) {}

  async post(path: string, body: unknown, options: { timeoutMs?: number; limitMs?: number; signal?: AbortSignal } = {}): Promise<Record<string, unknown>> {
    const headers: Record<string, string> = { "content-type": "application/json", accept: "application/json" };
    if (this.token) headers.authorization = `Bearer ${this.token}`;
    const ask: Ask = {
      method: "POST",
      url: this.url.replace(/\/$/, "") + path,
      headers,
      body: JSON.stringify(body),
      timeoutMs: options.timeoutMs ?? this.timeoutMs,
      signal: options.signal,
    };
    const backoff = { ...this.backoff, limitMs: options.limitMs ?? this.backoff.limitMs };
    return untilAnswered(ask, backoff, (answer) => {
      const said = document(answer);
      if (answer.status < 300 && Object.keys(said).length > 0) return { done: said };
      const problem = new Problem(answer.status, said);
      if (answer.status >= 300 && !isRetryable(answer.status, said)) throw problem;
      return { failure: problem };
    });
  }
}
