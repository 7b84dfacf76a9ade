/** What can go wrong, and what a handler may say. */

/** The server refused a request, with a problem document. Repeating it does not help. */
export class Problem extends Error {
  readonly code: string;
  readonly detail: string;

  constructor(readonly status: number, readonly document: Record<string, unknown>) {
    const code = String(document.code ?? String(document.type ?? "").split(":").pop());
    const detail = String(document.detail ?? "");
    super(`${status} ${code}: ${detail}`);
    this.name = "Problem";
    this.code = code;
    this.detail = detail;
  }
}

/** No answer within the time limit. Whether the request took effect is not known: repeat it with the same id. */
export class Unanswered extends Error {
  override name = "Unanswered";
}

/** The request is not what the server sent, or is too old. Answer 401. */
export class InvalidSignature extends Error {
  override name = "InvalidSignature";
}

/** What is known of the effect of a failed attempt. */
export type Executed = "no" | "unknown";

/** Thrown by a handler: a later attempt may succeed, `afterMs` from now at the earliest. */
export class Retry extends Error {
  override name = "Retry";

  constructor(message = "", readonly options: { afterMs?: number; code?: string; executed?: Executed } = {}) {
    super(message);
  }
}

/** Thrown by a handler: no attempt will succeed, so the event becomes a dead letter. */
export class Permanent extends Error {
  override name = "Permanent";

  constructor(message = "", readonly options: { code?: string; executed?: Executed } = {}) {
    super(message);
  }
}

/** Thrown by a handler: the event is not needed any more. */
export class Drop extends Error {
  override name = "Drop";
}
