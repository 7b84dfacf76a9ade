/** A worker: leases events, runs a handler, extends leases meanwhile, and settles. */

import { held, type Client, type Lease, type Settle } from "./client.js";
import { Drop, Permanent, Retry, Unanswered } from "./errors.js";

/** Has succeeded when it returns; a string is the event's result. Throw `Retry`, `Permanent` or `Drop` otherwise. */
export type Handler = (lease: Lease) => Promise<string | void> | string | void;

/**
 * Runs a handler for events of a queue until it is stopped. Delivery is at least once: make the effect depend on
 * `lease.idempotency_key`, which is the same for all attempts.
 */
export class Worker {
  private readonly stopping = new AbortController();
  private readonly running = new Set<Promise<void>>();
  private readonly options: { concurrency: number; leaseMs: number; wait: string; tenant?: string; onWarning: (text: string) => void };

  constructor(
    private readonly client: Client,
    private readonly queue: string,
    private readonly handler: Handler,
    options: { concurrency?: number; leaseMs?: number; wait?: string; tenant?: string; onWarning?: (text: string) => void } = {},
  ) {
    const usual = { concurrency: 16, leaseMs: 30_000, wait: "10s", onWarning: (text: string) => console.warn(text) };
    this.options = { ...usual, ...options };
  }

  /** Takes no more events; those under way are finished and settled. */
  stop(): void {
    this.stopping.abort();
  }

  /** Works until `stop`, or until SIGTERM or SIGINT if `signals`. */
  async run({ signals = true } = {}): Promise<void> {
    const stop = () => this.stop();
    if (signals) process.once("SIGTERM", stop).once("SIGINT", stop);
    const { concurrency, wait, tenant } = this.options;
    while (!this.stopping.signal.aborted) {
      if (this.running.size >= concurrency) {
        await Promise.race(this.running);
        continue;
      }
      const ask = { max: concurrency - this.running.size, lease: this.lease(), wait, ...(tenant === undefined ? {} : { tenant }) };
      for (const lease of await this.leases(ask)) {
        const attempt: Promise<void> = this.attempt(lease).finally(() => this.running.delete(attempt));
        this.running.add(attempt);
      }
    }
    await Promise.all(this.running);
    if (signals) process.off("SIGTERM", stop).off("SIGINT", stop);
  }

  private lease(): string {
    return `${Math.max(1000, Math.round(this.options.leaseMs))}ms`;
  }

  private async leases(ask: { max: number; lease: string; wait: string; tenant?: string }): Promise<Lease[]> {
    try {
      return await this.client.lease(this.queue, { ...ask, signal: this.stopping.signal });
    } catch (error) {
      // It was stopped while it waited.
      if (error instanceof Unanswered && this.stopping.signal.aborted) return [];
      throw error;
    }
  }

  private async attempt(lease: Lease): Promise<void> {
    let lost = false;
    const extending = setInterval(async () => {
      if (lost) return;
      try {
        const [result] = await this.client.extend(this.queue, [lease], this.lease());
        // Done, or another worker's: the settle finds out.
        lost = result?.status !== 200;
      } catch (error) {
        this.options.onWarning(`the lease of event ${lease.id} could not be extended: ${String(error)}`);
      }
    }, this.options.leaseMs / 3);
    const outcome = await this.outcome(lease);
    clearInterval(extending);
    try {
      const [result] = await this.client.settle(this.queue, [{ ...held(lease), ...outcome }]);
      if (result?.status !== 200) this.options.onWarning(`event ${lease.id}: the settle is ${result?.result}`);
    } catch (error) {
      // The lease runs out, and the event is attempted again.
      this.options.onWarning(`event ${lease.id} could not be settled: ${String(error)}`);
    }
  }

  private async outcome(lease: Lease): Promise<Omit<Settle, "id" | "tenant" | "attempt" | "token">> {
    try {
      const result = await this.handler(lease);
      return typeof result === "string" ? { disposition: "ok", result } : { disposition: "ok" };
    } catch (thrown) {
      const error = thrown instanceof Error ? thrown : new Error(String(thrown));
      const said = { kind: error.name, message: error.message.slice(0, 2000) };
      if (error instanceof Drop) return { disposition: "drop" };
      if (error instanceof Permanent || error instanceof Retry) {
        const { code, executed = "unknown" } = error.options;
        const cause = code === undefined ? said : { ...said, code };
        if (error instanceof Permanent) return { disposition: "permanent", executed, error: cause };
        const { afterMs } = error.options;
        return { disposition: "retry", executed, error: cause, ...(afterMs === undefined ? {} : { after: `${Math.round(afterMs)}ms` }) };
      }
      return { disposition: "retry", error: said };
    }
  }
}
