//! Every name that leaves the process, in one place, so that HTTP, metrics and logs agree.
//!
//! The page `docs/names.md` explains them; `cargo xtask tidy` compares the two.

/// Headers that travel with a call or an answer.
pub mod header {
    /// Which attempt this is, 1 for the first.
    pub const ATTEMPT: &str = "redrive-attempt";
    /// After this moment (RFC 3339) no attempt makes sense.
    pub const DEADLINE: &str = "redrive-deadline";
    /// On an answer: `1` where the caller must not try again.
    pub const NO_RETRY: &str = "redrive-no-retry";
    /// The id of an event.
    pub const ID: &str = "redrive-id";
    /// Whose event it is.
    pub const TENANT: &str = "redrive-tenant";
    /// The queue that it was published to.
    pub const QUEUE: &str = "redrive-queue";
    /// The key within which order is kept.
    pub const KEY: &str = "redrive-key";
    /// Why an attempt runs.
    pub const MODE: &str = "redrive-mode";
    /// When the event was published (RFC 3339).
    pub const FIRST_SEEN: &str = "redrive-first-seen";
    /// What it belongs to.
    pub const CORRELATION: &str = "redrive-correlation";
    /// The event whose handler published it.
    pub const CAUSATION: &str = "redrive-causation";
    /// Owner's epoch and place in the queue, `3.17`: a receiver can refuse what is older than what it has seen.
    pub const FENCE: &str = "redrive-fence";
    /// `1` where later events of its key may have run before it.
    pub const OUT_OF_ORDER: &str = "redrive-out-of-order";
    /// Standard Webhooks: what the signature is over, first part.
    pub const WEBHOOK_ID: &str = "webhook-id";
    /// Standard Webhooks: the second part, seconds since the Unix epoch.
    pub const WEBHOOK_TIMESTAMP: &str = "webhook-timestamp";
    /// Standard Webhooks: the signatures.
    pub const WEBHOOK_SIGNATURE: &str = "webhook-signature";
    /// The identity of the intent, the same over all attempts.
    pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
    /// On an answer: how the request stands in the ledger, `created`, `resumed`, `none`, `bypassed`, `unrecorded`.
    pub const IDEMPOTENCY_STATUS: &str = "idempotency-status";
    /// On an answer: `true` where it is the first one's, again.
    pub const IDEMPOTENT_REPLAYED: &str = "idempotent-replayed";
    /// On an answer: until when it is replayed.
    pub const IDEMPOTENCY_EXPIRES: &str = "idempotency-expires";
    /// On an answer that is gone: until when it is remembered that there was one.
    pub const IDEMPOTENCY_FORGOTTEN: &str = "idempotency-forgotten";
    /// On a replay: when the request first came.
    pub const IDEMPOTENCY_FIRST_RECEIVED: &str = "idempotency-first-received";
    /// On an answer: how often the request was begun.
    pub const IDEMPOTENCY_ATTEMPT: &str = "idempotency-attempt";
    /// From a handler to the layer around it, and no further: `final`, `none`, `unknown`.
    pub const IDEMPOTENCY_OUTCOME: &str = "idempotency-outcome";
    /// On a request: when its client first sent it.
    pub const REPEATABILITY_FIRST_SENT: &str = "repeatability-first-sent";
    /// On a request: `wait=n`, how long its client waits for one that runs.
    pub const PREFER: &str = "prefer";
    /// On an answer: `wait`, where it was waited for.
    pub const PREFERENCE_APPLIED: &str = "preference-applied";
    /// On an answer that is given again: what was never stored of it.
    pub const IDEMPOTENCY_REDACTED: &str = "idempotency-redacted";
    /// How long the answering side asks to be left alone.
    pub const RETRY_AFTER: &str = "retry-after";
    /// gRPC's way to say the same, in milliseconds; negative means never.
    pub const GRPC_PUSHBACK: &str = "grpc-retry-pushback-ms";
    /// gRPC's way to say how much time is left.
    pub const GRPC_TIMEOUT: &str = "grpc-timeout";
    /// The publisher's trace: attempts link to it.
    pub const TRACEPARENT: &str = "traceparent";
    /// What kind of event it is, as CloudEvents call it.
    pub const TYPE: &str = "ce-type";
    /// What else belongs to that trace.
    pub const TRACESTATE: &str = "tracestate";
}

/// Metrics, in Prometheus' spelling.
pub mod metric {
    /// Attempts, by disposition.
    pub const ATTEMPTS: &str = "redrive_attempts_total";
    /// Retries, by class of the fault before them.
    pub const RETRIES: &str = "redrive_retries_total";
    /// Runs that succeeded, but not at first: flapping that nobody else sees.
    pub const SUCCESS_AFTER_RETRY: &str = "redrive_success_after_retry_total";
    /// How long attempts took.
    pub const ATTEMPT_SECONDS: &str = "redrive_attempt_seconds";
    /// The waits that were chosen.
    pub const RETRY_DELAY_SECONDS: &str = "redrive_retry_delay_seconds";
    /// Runs that ended, by reason.
    pub const STOPPED: &str = "redrive_stopped_total";
    /// Tokens left in a budget.
    pub const BUDGET_TOKENS: &str = "redrive_budget_tokens";
    /// Retries made out of a budget.
    pub const BUDGET_SPENT: &str = "redrive_budget_spent_total";
    /// 0 closed, 1 half open, 2 open.
    pub const BREAKER_STATE: &str = "redrive_breaker_state";
    /// Events that were published, by result.
    pub const PUBLISHED: &str = "redrive_published_total";
    /// What came a second time, by where that was noticed.
    pub const DUPLICATES: &str = "redrive_duplicates_total";
    /// Ids that a dedupe window forgot before their time, because more came than fit.
    pub const WINDOW_EVICTED: &str = "redrive_window_evicted_total";
    /// Dead letters, by reason.
    pub const DEAD: &str = "redrive_dead_total";
    /// Events whose handler said that they are not needed.
    pub const DROPPED: &str = "redrive_dropped_total";
    /// Events whose time was over before they could run.
    pub const EXPIRED: &str = "redrive_expired_total";
    /// How long after its time an attempt began.
    pub const LATENESS_SECONDS: &str = "redrive_lateness_seconds";
    /// Dead letters of whose last attempt nobody knows whether it had its effect.
    pub const DEAD_UNKNOWN: &str = "redrive_dead_unknown_total";
    /// Writes of an owner that was one no more; they changed nothing.
    pub const FENCED: &str = "redrive_fenced_total";
    /// Shards that a process owns, of a store that several share.
    pub const SHARDS: &str = "redrive_shards";
    /// Shards that were taken from an owner that was not heard of any more.
    pub const TAKE_OVERS: &str = "redrive_take_overs_total";
    /// Events, by state.
    pub const EVENTS: &str = "redrive_events";
    /// For how long the oldest event could have run and did not end.
    pub const OLDEST_DUE_SECONDS: &str = "redrive_oldest_due_seconds";
    /// Requests under idempotency keys, by what became of them.
    pub const LEDGER: &str = "redrive_ledger_total";
    /// Requests that ask what another key asked lately: perhaps a client that mints a key for each attempt.
    pub const LEDGER_SAME_BODY: &str = "redrive_ledger_same_body_other_key_total";
    /// Requests whose outcome is unknown: each waits for a person.
    pub const LEDGER_UNKNOWN: &str = "redrive_ledger_unknown";
    /// Commits of the store.
    pub const COMMITS: &str = "redrive_commits_total";
    /// Changes in a commit.
    pub const COMMIT_BATCH: &str = "redrive_commit_batch";
    /// How long commits took: nearly all of it is the sync of the disk.
    pub const SYNC_SECONDS: &str = "redrive_sync_seconds";
    /// Bytes that are free where the store is.
    pub const DISK_FREE_BYTES: &str = "redrive_disk_free_bytes";
    /// Below how many of them publishing stops.
    pub const DISK_LEAST_BYTES: &str = "redrive_disk_least_bytes";
    /// Requests that were answered, by route, method and status.
    pub const HTTP_REQUESTS: &str = "redrive_http_requests_total";
    /// How long they took.
    pub const HTTP_SECONDS: &str = "redrive_http_seconds";
}

/// Labels of those metrics.
pub mod label {
    /// What is called: the policy's name.
    pub const TARGET: &str = "target";
    /// What an attempt said of itself.
    pub const DISPOSITION: &str = "disposition";
    /// Why a retry may help.
    pub const CLASS: &str = "class";
    /// Why a run ended.
    pub const REASON: &str = "reason";
    /// Which queue.
    pub const QUEUE: &str = "queue";
    /// What became of a publish, `accepted`, `duplicate`, `refused`, or of a request under a key.
    pub const RESULT: &str = "result";
    /// Where a duplicate was noticed.
    pub const PLACE: &str = "place";
    /// Who owns a shard: the name of a process.
    pub const OWNER: &str = "owner";
    /// Which operation of an API.
    pub const ENDPOINT: &str = "endpoint";
    /// Where an event is.
    pub const STATE: &str = "state";
    /// Which address of the server, as a pattern.
    pub const ROUTE: &str = "route";
    /// By which method.
    pub const METHOD: &str = "method";
    /// With which status.
    pub const STATUS: &str = "status";
}

/// Why a run ended.
pub mod stop {
    /// It worked.
    pub const SUCCEEDED: &str = "succeeded";
    /// Trying again will not help.
    pub const PERMANENT: &str = "permanent";
    /// Nobody knew the error.
    pub const UNCLASSIFIED: &str = "unclassified";
    /// Not needed any more.
    pub const DISCARDED: &str = "discarded";
    /// No attempts left.
    pub const ATTEMPTS_SPENT: &str = "attempts_spent";
    /// No time left by the policy.
    pub const TIME_SPENT: &str = "time_spent";
    /// No time left by the caller.
    pub const DEADLINE: &str = "deadline";
    /// No budget left.
    pub const BUDGET_SPENT: &str = "budget_spent";
    /// The breaker is open.
    pub const BREAKER_OPEN: &str = "breaker_open";
    /// The other side asks for too long a wait.
    pub const NOT_BEFORE_TOO_FAR: &str = "not_before_too_far";
    /// Whoever waits gave up.
    pub const CANCELLED: &str = "cancelled";
}
