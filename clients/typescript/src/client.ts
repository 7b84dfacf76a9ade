/** Publishing, leasing, settling. */

import { USUAL, Transport, type Backoff } from "./transport.js";

/** Events of one request; the server's `batch_max` is larger. */
const BATCH = 500;

/** An event to publish. `id` is the identity of the intent: mint it once, and keep it over all tries. */
export interface Event {
  id: string;
  /** JSON, or bytes. */
  payload?: unknown;
  key?: string;
  tenant?: string;
  content_type?: string;
  headers?: Record<string, string>;
  delay?: string;
  at?: string;
  expires_after?: string;
  expires_at?: string;
  correlation?: string;
  causation?: string;
  policy?: Record<string, unknown>;
}

/** What became of an event: `duplicate` has the state of the `first`, `refused` a `problem`. */
export interface Published {
  id: string | null;
  result: "accepted" | "duplicate" | "refused";
  first?: Record<string, unknown>;
  problem?: Record<string, unknown>;
}

/** The right to run one attempt of an event, until it is settled or its time is over. */
export interface Lease {
  id: string;
  /** Empty if there is none. */
  tenant: string;
  attempt: number;
  token: string;
  until: string;
  mode: "live" | "retry" | "redrive" | "replay";
  /** For downstream calls: the same for all attempts. */
  idempotency_key: string;
  key?: string;
  payload?: string;
  payload_base64?: string;
  headers?: [string, string][];
  content_type?: string;
  correlation?: string;
  causation?: string;
  cloudevent?: Record<string, string | number | boolean>;
}

/** The outcome of an attempt. */
export type Settle = Pick<Lease, "id" | "tenant" | "attempt" | "token"> & {
  disposition: "ok" | "retry" | "permanent" | "drop";
  result?: string;
  after?: string;
  error?: { kind?: string; code?: string; message?: string };
  executed?: "no" | "unknown";
};

/** What became of a settle. */
export interface SettleResult {
  id: string;
  status: 200 | 404 | 409;
  result: "applied" | "already" | "conflict" | "lapsed" | "unknown";
}

/** What proves the lease. */
export function held({ id, tenant, attempt, token }: Lease): Pick<Lease, "id" | "tenant" | "attempt" | "token"> {
  return { id, tenant, attempt, token };
}

function written({ payload, ...event }: Event): Record<string, unknown> {
  if (payload instanceof Uint8Array) return { ...event, payload_base64: Buffer.from(payload).toString("base64") };
  return payload === undefined ? event : { ...event, payload };
}

/** A server. Every request is repeated under the same ids until it is answered. */
export class Client {
  private readonly transport: Transport;

  constructor(url: string, options: { token?: string; timeoutMs?: number; backoff?: Partial<Backoff> } = {}) {
    this.transport = new Transport(url, options.token, options.timeoutMs ?? 30_000, { ...USUAL, ...options.backoff });
  }

  /** Publishes one event. A `Problem` says that it is refused, `Unanswered` that its fate is not known. */
  async publish(queue: string, event: Event): Promise<Published> {
    return (await this.transport.post(`/v1/queues/${encodeURIComponent(queue)}/events`, written(event))) as unknown as Published;
  }

  /** Publishes many events; a refused one does not hold up the others. */
  async publishMany(queue: string, events: Event[]): Promise<Published[]> {
    const results: Published[] = [];
    for (let start = 0; start < events.length; start += BATCH) {
      const batch = events.slice(start, start + BATCH).map(written);
      const said = await this.transport.post(`/v1/queues/${encodeURIComponent(queue)}/events`, { events: batch });
      results.push(...(said.results as Published[]));
    }
    return results;
  }

  /** Leases up to `max` events, and waits for the first. */
  async lease(queue: string, options: { max?: number; lease?: string; wait?: string; tenant?: string; signal?: AbortSignal } = {}): Promise<Lease[]> {
    const { signal, ...ask } = { max: 1, lease: "30s", wait: "10s", ...options };
    // A wait may be as long as the server lets it be; a lost answer costs the lease's time and no event.
    const sending = { timeoutMs: this.transport.timeoutMs + 60_000, ...(signal ? { signal, limitMs: Infinity } : {}) };
    return (await this.transport.post(`/v1/queues/${encodeURIComponent(queue)}/leases`, ask, sending)).leases as Lease[];
  }

  /** Extends leases by so long from now; one result each. */
  async extend(queue: string, leases: Lease[], lease = "30s"): Promise<SettleResult[]> {
    const ask = { leases: leases.map(held), lease };
    const said = await this.transport.post(`/v1/queues/${encodeURIComponent(queue)}/leases/extend`, ask, { limitMs: 10_000 });
    return said.results as SettleResult[];
  }

  /** Commits outcomes; one result each. Repeating a settle is safe. */
  async settle(queue: string, leases: Settle[]): Promise<SettleResult[]> {
    return (await this.transport.post(`/v1/queues/${encodeURIComponent(queue)}/leases/settle`, { leases })).results as SettleResult[];
  }
}

/** The bytes of a lease's payload. */
export function payloadOf(lease: Lease): Uint8Array {
  return lease.payload_base64 === undefined ? Buffer.from(lease.payload ?? "") : Buffer.from(lease.payload_base64, "base64");
}
