// The CloudEvents SDK of npm reads pushes.
import { readFileSync } from "node:fs";
import { HTTP } from "cloudevents";

for (const push of JSON.parse(readFileSync(0, "utf8"))) {
  const event = HTTP.toEvent({ headers: push.headers, body: push.body });
  // It does not percent-decode headers, so a binary push needs the structured form where attributes are odd.
  const subject = push.queue === "binary" ? decodeURIComponent(event.subject) : event.subject;
  const ok = subject === "Zürich 100% sure" && event.data.euro === 17 && String(event.count) === "7";
  console.log(JSON.stringify({ client: "cloudevents (npm)", case: `${push.queue} push: read back`, ok, note: JSON.stringify(event) }));
}
