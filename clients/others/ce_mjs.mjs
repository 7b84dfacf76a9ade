// The CloudEvents SDK of npm: publishes in each mode, through its own emitter.
import { readFileSync } from "node:fs";
import { CloudEvent, HTTP, Mode, emitterFor, httpTransport } from "cloudevents";

const ask = JSON.parse(readFileSync(0, "utf8"));
const url = ask.url + "/v1/queues/jobs/events";
for (const mode of ["binary", "structured", "batched"]) {
  const event = new CloudEvent({ id: `${ask.label}-${mode}`, source: "/shop", type: "order", subject: "Zürich 100% sure", data: { euro: 17 } });
  let status = "sent", ok = true;
  try {
    if (mode === "batched") {
      const headers = { "content-type": "application/cloudevents-batch+json" };
      const answer = await fetch(url, { method: "POST", headers, body: JSON.stringify([event]) });
      ok = answer.status === 202;
      status = await answer.text();
    } else {
      const emit = emitterFor(httpTransport(url), { mode: mode === "binary" ? Mode.BINARY : Mode.STRUCTURED });
      const answer = await emit(event);
      status = String(answer.body);
      ok = status.includes("accepted");
    }
  } catch (error) {
    [ok, status] = [false, String(error)];
  }
  console.log(JSON.stringify({ client: "cloudevents (npm)", case: `${mode}: accepted`, ok, note: status }));
}
