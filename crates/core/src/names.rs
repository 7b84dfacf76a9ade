//! All public names of headers, metrics, labels and stop reasons in one place, so that HTTP, metrics and logs
//! agree.
//!
//! The page `docs/reference/names.md` explains them; `cargo xtask tidy` compares the two.

/// Headers of requests and responses.
pub mod header {
    /// The number of the attempt, from 1.
    pub const ATTEMPT: &str = "redrive-attempt";
    /// The deadline (RFC 3339): no attempt starts after it.
    pub const DEADLINE: &str = "redrive-deadline";
    /// On a response: `1` if the caller must not retry.
    pub const NO_RETRY: &str = "redrive-no-retry";
    /// The id of an event.
    pub const ID: &str = "redrive-id";
    /// The tenant that owns the event.
    pub const TENANT: &str = "redrive-tenant";
    /// The queue that the event was published to.
    pub const QUEUE: &str = "redrive-queue";
    /// The ordering key.
    pub const KEY: &str = "redrive-key";
    /// Why an attempt runs.
    pub const MODE: &str = "redrive-mode";
    /// When the event was published (RFC 3339).
    pub const FIRST_SEEN: &str = "redrive-first-seen";
    /// Where a message first came from: topic, partition and offset. Set once.
    pub const ORIGIN: &str = "redrive-origin";
    /// The consumer group that retries a message.
    pub const GROUP: &str = "redrive-group";
    /// The wait that the policy chose before the next attempt, in milliseconds.
    pub const NEXT_DELAY_MS: &str = "redrive-next-delay-ms";
    /// When the next attempt is due (RFC 3339).
    pub const DUE: &str = "redrive-due";
    /// On a dead letter: why it will not be retried by itself.
    pub const DEAD_REASON: &str = "redrive-dead-reason";
    /// On a dead letter: the kind of the last error.
    pub const DEAD_KIND: &str = "redrive-dead-kind";
    /// On a dead letter: the last error, at most 512 bytes.
    pub const DEAD_MESSAGE: &str = "redrive-dead-message";
    /// On a dead letter: the attempts made.
    pub const DEAD_ATTEMPTS: &str = "redrive-dead-attempts";
    /// The correlation id.
    pub const CORRELATION: &str = "redrive-correlation";
    /// The id of the event whose handler published this one.
    pub const CAUSATION: &str = "redrive-causation";
    /// The owner's epoch and the event's sequence number, `3.17`: a receiver can refuse values older than the
    /// newest it has seen.
    pub const FENCE: &str = "redrive-fence";
    /// `1` if later events of its key may have run before it.
    pub const OUT_OF_ORDER: &str = "redrive-out-of-order";
    /// Standard Webhooks: the message id, the first part of the signed content.
    pub const WEBHOOK_ID: &str = "webhook-id";
    /// Standard Webhooks: the second part of the signed content, in seconds since the Unix epoch.
    pub const WEBHOOK_TIMESTAMP: &str = "webhook-timestamp";
    /// Standard Webhooks: the signatures.
    pub const WEBHOOK_SIGNATURE: &str = "webhook-signature";
    /// The identity of the intent, the same for all attempts.
    pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
    /// On a response: the request's status in the ledger: `created`, `resumed`, `none`, `bypassed`,
    /// `unrecorded`.
    pub const IDEMPOTENCY_STATUS: &str = "idempotency-status";
    /// On a response: `true` if it is a replay of the first response.
    pub const IDEMPOTENT_REPLAYED: &str = "idempotent-replayed";
    /// On a response: until when it is replayed.
    pub const IDEMPOTENCY_EXPIRES: &str = "idempotency-expires";
    /// On a response whose stored reply has expired: until when the ledger keeps the record.
    pub const IDEMPOTENCY_FORGOTTEN: &str = "idempotency-forgotten";
    /// On a replay: when the request first arrived.
    pub const IDEMPOTENCY_FIRST_RECEIVED: &str = "idempotency-first-received";
    /// On a response: how often the request was started.
    pub const IDEMPOTENCY_ATTEMPT: &str = "idempotency-attempt";
    /// From a handler to the layer around it, which removes it: `final`, `none`, `unknown`.
    pub const IDEMPOTENCY_OUTCOME: &str = "idempotency-outcome";
    /// On a request: when its client first sent it.
    pub const REPEATABILITY_FIRST_SENT: &str = "repeatability-first-sent";
    /// On a request: `wait=n`, how many seconds its client waits for a running request.
    pub const PREFER: &str = "prefer";
    /// On a response: `wait`, if the server waited.
    pub const PREFERENCE_APPLIED: &str = "preference-applied";
    /// On a replay: the parts that were never stored.
    pub const IDEMPOTENCY_REDACTED: &str = "idempotency-redacted";
    /// How long the server asks the client to wait.
    pub const RETRY_AFTER: &str = "retry-after";
    /// The same in milliseconds, for SDKs that read it.
    pub const RETRY_AFTER_MS: &str = "retry-after-ms";
    /// On a response: `true` or `false`, whether Stripe's SDKs and their like should repeat the request.
    pub const STRIPE_SHOULD_RETRY: &str = "stripe-should-retry";
    /// The same for SDKs of other APIs.
    pub const X_SHOULD_RETRY: &str = "x-should-retry";
    /// gRPC's equivalent, in milliseconds; negative means never.
    pub const GRPC_PUSHBACK: &str = "grpc-retry-pushback-ms";
    /// gRPC's remaining time.
    pub const GRPC_TIMEOUT: &str = "grpc-timeout";
    /// The publisher's trace, which attempts link to.
    pub const TRACEPARENT: &str = "traceparent";
    /// The type of the event, as in CloudEvents.
    pub const TYPE: &str = "ce-type";
    /// Of an event that was a CloudEvent, in the store: its attributes that are no strings, as `count=integer
    /// urgent=boolean`. Never pushed.
    pub const CE_TYPES: &str = "redrive-ce-types";
    /// Vendor data of that trace.
    pub const TRACESTATE: &str = "tracestate";
}

/// Metrics, in Prometheus' spelling.
pub mod metric {
    /// Attempts, by disposition.
    pub const ATTEMPTS: &str = "redrive_attempts_total";
    /// Retries, by class of the fault before them.
    pub const RETRIES: &str = "redrive_retries_total";
    /// Runs that succeeded after a retry: flapping that no other metric shows.
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
    /// Duplicates, by the place where they were detected.
    pub const DUPLICATES: &str = "redrive_duplicates_total";
    /// Ids that a dedupe window evicted early because it was full.
    pub const WINDOW_EVICTED: &str = "redrive_window_evicted_total";
    /// Dead letters, by reason.
    pub const DEAD: &str = "redrive_dead_total";
    /// Events that their handler dropped as not needed.
    pub const DROPPED: &str = "redrive_dropped_total";
    /// Events that expired before they could run.
    pub const EXPIRED: &str = "redrive_expired_total";
    /// How long after its due time an attempt began.
    pub const LATENESS_SECONDS: &str = "redrive_lateness_seconds";
    /// Dead letters whose last attempt has an unknown outcome.
    pub const DEAD_UNKNOWN: &str = "redrive_dead_unknown_total";
    /// Writes of a former owner that were fenced off; they changed nothing.
    pub const FENCED: &str = "redrive_fenced_total";
    /// Shards that a process owns, in a store that several processes share.
    pub const SHARDS: &str = "redrive_shards";
    /// Shards that were taken over from an owner whose lease ran out.
    pub const TAKE_OVERS: &str = "redrive_take_overs_total";
    /// Shards that had an event to run and made no progress: a bug, which the engine repairs by taking them
    /// again.
    pub const STALLED_SHARDS: &str = "redrive_stalled_shards";
    /// Events, by state.
    pub const EVENTS: &str = "redrive_events";
    /// How long the oldest due event has been waiting.
    pub const OLDEST_DUE_SECONDS: &str = "redrive_oldest_due_seconds";
    /// Events that failed and are retried.
    pub const RETRYING: &str = "redrive_retrying";
    /// How long the oldest retried event has been failing.
    pub const OLDEST_FAILING_SECONDS: &str = "redrive_oldest_failing_seconds";
    /// Batches of traces that could not be exported.
    pub const TRACE_EXPORT_FAILURES: &str = "redrive_trace_export_failures_total";
    /// Requests under idempotency keys, by result.
    pub const LEDGER: &str = "redrive_ledger_total";
    /// Requests with the content of a recent request under another key: perhaps a client mints a key for each
    /// attempt.
    pub const LEDGER_SAME_BODY: &str = "redrive_ledger_same_body_other_key_total";
    /// Requests with an unknown outcome: each waits for an operator.
    pub const LEDGER_UNKNOWN: &str = "redrive_ledger_unknown";
    /// Failed ledger writes, by kind: a claim or an end.
    pub const LEDGER_FAILURES: &str = "redrive_ledger_failures_total";
    /// Commits of the store.
    pub const COMMITS: &str = "redrive_commits_total";
    /// Changes in a commit.
    pub const COMMIT_BATCH: &str = "redrive_commit_batch";
    /// How long commits took, nearly all of it the disk's sync.
    pub const SYNC_SECONDS: &str = "redrive_sync_seconds";
    /// Free bytes on the store's disk.
    pub const DISK_FREE_BYTES: &str = "redrive_disk_free_bytes";
    /// The free bytes below which publishing stops.
    pub const DISK_LEAST_BYTES: &str = "redrive_disk_least_bytes";
    /// Requests answered, by route, method and status.
    pub const HTTP_REQUESTS: &str = "redrive_http_requests_total";
    /// How long requests took.
    pub const HTTP_SECONDS: &str = "redrive_http_seconds";
}

/// Labels of those metrics.
pub mod label {
    /// The downstream: the policy's name.
    pub const TARGET: &str = "target";
    /// The disposition of an attempt.
    pub const DISPOSITION: &str = "disposition";
    /// Why a retry may help.
    pub const CLASS: &str = "class";
    /// Why a run ended.
    pub const REASON: &str = "reason";
    /// The queue.
    pub const QUEUE: &str = "queue";
    /// The result of a publish, `accepted`, `duplicate` or `refused`, or of a request under a key.
    pub const RESULT: &str = "result";
    /// Where a duplicate was detected.
    pub const PLACE: &str = "place";
    /// The owner of a shard: the name of a process.
    pub const OWNER: &str = "owner";
    /// The operation of an API.
    pub const ENDPOINT: &str = "endpoint";
    /// The state of an event.
    pub const STATE: &str = "state";
    /// The server's route, as a pattern.
    pub const ROUTE: &str = "route";
    /// The HTTP method.
    pub const METHOD: &str = "method";
    /// The HTTP status.
    pub const STATUS: &str = "status";
}

/// Why a run ended.
pub mod stop {
    /// It worked.
    pub const SUCCEEDED: &str = "succeeded";
    /// Another attempt will not help.
    pub const PERMANENT: &str = "permanent";
    /// No classifier knew the error.
    pub const UNCLASSIFIED: &str = "unclassified";
    /// The event was dropped as not needed.
    pub const DROPPED: &str = "dropped";
    /// No attempts left.
    pub const ATTEMPTS_SPENT: &str = "attempts_spent";
    /// The policy's total time is used up.
    pub const TIME_SPENT: &str = "time_spent";
    /// The caller's deadline has passed.
    pub const DEADLINE: &str = "deadline";
    /// No budget left.
    pub const BUDGET_SPENT: &str = "budget_spent";
    /// The breaker is open.
    pub const BREAKER_OPEN: &str = "breaker_open";
    /// The downstream asked for too long a wait.
    pub const NOT_BEFORE_TOO_FAR: &str = "not_before_too_far";
    /// The caller cancelled.
    pub const CANCELLED: &str = "cancelled";
    /// The call was made inside the body of a transaction.
    pub const IN_TRANSACTION: &str = "in_transaction";
}
