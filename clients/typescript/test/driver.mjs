// The shared script of scenarios, for this library: see clients/README.md.
import { createInterface } from "node:readline";

import { Client, IdempotentClient, InvalidSignature, Permanent, Problem, Retry, Worker, verify } from "../dist/index.js";

const say = (line) => process.stdout.write(JSON.stringify(line) + "\n");
const backoff = { baseMs: 20, capMs: 300, limitMs: 120_000 };
const lines = () => createInterface({ input: process.stdin });

const scenarios = {
  async publish(url, queue, count) {
    const client = new Client(url, { timeoutMs: 10_000, backoff });
    const half = Math.floor(Number(count) / 2);
    for (let n = 0; n < half; n++) {
      const { result } = await client.publish(queue, { id: `one-${n}`, payload: { n } });
      say({ published: `one-${n}`, result });
    }
    for (let start = 0; start < half; start += 10) {
      const events = [];
      for (let n = start; n < Math.min(start + 10, half); n++) events.push({ id: `many-${n}`, payload: { n } });
      for (const { id, result } of await client.publishMany(queue, events)) say({ published: id, result });
    }
  },
  async work(url, queue) {
    const tried = new Set();
    const handle = async (lease) => {
      const again = tried.has(lease.idempotency_key);
      tried.add(lease.idempotency_key);
      if (lease.id.endsWith("7") && !again) throw new Retry("the first time it is busy", { code: "503", afterMs: 10, executed: "no" });
      if (lease.id === "poison") throw new Permanent("never", { code: "422" });
      say({ effect: lease.id, key: lease.idempotency_key });
    };
    const client = new Client(url, { timeoutMs: 10_000, backoff });
    await new Worker(client, queue, handle, { concurrency: 4, leaseMs: 3_000, wait: "1s" }).run();
    say({ stopped: true });
  },
  async webhooks() {
    for await (const line of lines()) {
      const ask = JSON.parse(line);
      try {
        verify(ask.secrets, ask.headers, Buffer.from(ask.body, "base64"), ask.now === undefined ? {} : { now: ask.now * 1000 });
        say({ valid: true });
      } catch (error) {
        if (!(error instanceof InvalidSignature)) throw error;
        say({ valid: false, why: error.message });
      }
    }
  },
  async call(url) {
    const client = new IdempotentClient({ timeoutMs: 10_000, backoff: { ...backoff, limitMs: 30_000 } });
    for await (const line of lines()) {
      const ask = JSON.parse(line);
      try {
        const { status, replayed, key } = await client.request("POST", url + ask.path, { data: ask.data, ...(ask.key ? { key: ask.key } : {}) });
        say({ status, replayed, key });
      } catch (error) {
        if (error instanceof Problem) say({ problem: error.code, status: error.status });
        else say({ unanswered: true });
      }
    }
  },
};

const [name, ...words] = process.argv.slice(2);
await scenarios[name](...words);
