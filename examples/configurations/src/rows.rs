//! The configurations, each with its vector and the failure that it has without its guard.

use std::collections::BTreeMap;

use anyhow::{Result, bail};

use crate::life::{ITEMS, Life};

mod application_retry;
mod compare_and_set;
mod dedupe_store;
mod idempotency_key;
mod message_redelivery;
mod outbox;
mod retry_budget;
mod sequence_and_epoch;
mod transaction_retry;
mod transport_retry;

/// What a configuration is made of.
pub(crate) struct Vector {
    identity: &'static str,
    rung: &'static str,
    placement: &'static str,
    reversibility: &'static str,
    domain: &'static str,
}

/// What counts as a failure: the same with the guard off and on.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Checker {
    /// An item whose effect did not happen exactly once.
    Once,
    /// An item whose effect happened more than once. It may not have happened: then the worker said so.
    NotTwice,
    /// A value that is not the number of all changes.
    Total,
    /// Calls to a service that is down, beyond twice the requests.
    Load,
    /// It does not run yet.
    None,
}

/// A configuration.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    vector: Vector,
    failure: &'static str,
    checker: Checker,
    waits_for: Option<&'static str>,
}

const fn vector(
    identity: &'static str,
    rung: &'static str,
    placement: &'static str,
    reversibility: &'static str,
    domain: &'static str,
) -> Vector {
    Vector { identity, rung, placement, reversibility, domain }
}

const fn row(name: &'static str, failure: &'static str, checker: Checker, vector: Vector) -> Row {
    Row { name, vector, failure, checker, waits_for: None }
}

/// All configurations. `cargo xtask tidy` compares their names with the pages, the modules and the tests.
pub(crate) const ALL: &[Row] = &[
    row(
        "transport-retry",
        "a POST is sent again by the transport, and charges twice",
        Checker::NotTwice,
        vector("the request", "algebra", "client", "irreversible", "one hop"),
    ),
    row(
        "application-retry",
        "each attempt mints a key of its own, so the receiver cannot tell them apart",
        Checker::Once,
        vector("the intent", "dedupe record", "caller", "irreversible", "caller and receiver"),
    ),
    row(
        "message-redelivery",
        "a crash between effect and acknowledgement, and the effect happens again",
        Checker::Once,
        vector("the message id", "transactional", "consumer", "guarded", "the consumer's database"),
    ),
    row(
        "transaction-retry",
        "the body runs again after a conflict, and so does the email in it",
        Checker::Once,
        vector("the transaction's number", "transactional", "body", "guarded", "one database"),
    ),
    row(
        "idempotency-key",
        "the key is kept in a commit after the effect, and a crash in between repeats the effect",
        Checker::Once,
        vector("Idempotency-Key", "transactional", "server", "guarded", "the server's database"),
    ),
    row(
        "sequence-and-epoch",
        "a restarted producer numbers from one again, and what was applied is applied again",
        Checker::Once,
        vector("(producer, number)", "sequence and epoch", "receiver", "guarded", "the receiver's database"),
    ),
    row(
        "compare-and-set",
        "two writers read the same value, and one update is lost",
        Checker::Total,
        vector("the operation", "compare and set", "value", "guarded", "one row"),
    ),
    row(
        "outbox",
        "the row commits, the process dies, and the event was never published",
        Checker::Once,
        vector("the event id", "transactional", "producer", "guarded", "the producer's database"),
    ),
    Row {
        waits_for: Some("waits for sagas"),
        ..row(
            "saga",
            "a compensation without an identity refunds twice",
            Checker::None,
            vector("(saga, step, direction)", "dedupe record", "coordinator", "compensable", "many services"),
        )
    },
    row(
        "retry-budget",
        "every caller retries a service that is down, and multiplies its load",
        Checker::Load,
        vector("none", "none", "caller", "any", "all callers of one service"),
    ),
    row(
        "dedupe-store",
        "the marker is kept before the effect, and a crash in between loses the effect",
        Checker::Once,
        vector("the message id", "dedupe record", "consumer", "irreversible", "the window, not the effect"),
    ),
    Row {
        waits_for: Some("waits for the Kafka adapter"),
        ..row(
            "exactly-once-discipline",
            "the offset commits without the output, or the output without the offset",
            Checker::None,
            vector("(topic, partition, offset)", "transactional", "consumer", "guarded", "one Kafka cluster"),
        )
    },
];

impl Row {
    /// What it waits for, if it does not run yet.
    pub(crate) const fn waits_for(&self) -> Option<&'static str> {
        self.waits_for
    }

    /// One life of its worker.
    pub(crate) async fn live(&self, life: &Life) -> Result<()> {
        match self.name {
            "transport-retry" => transport_retry::live(life).await,
            "application-retry" => application_retry::live(life).await,
            "message-redelivery" => message_redelivery::live(life).await,
            "transaction-retry" => transaction_retry::live(life),
            "idempotency-key" => idempotency_key::live(life).await,
            "sequence-and-epoch" => sequence_and_epoch::live(life),
            "compare-and-set" => compare_and_set::live(life),
            "outbox" => outbox::live(life).await,
            "retry-budget" => retry_budget::live(life).await,
            "dedupe-store" => dedupe_store::live(life).await,
            other => bail!("{other} {}", self.waits_for.unwrap_or("is not known")),
        }
    }

    /// How many failures these effects show.
    pub(crate) fn check(&self, effects: &BTreeMap<String, u64>) -> u64 {
        let of = |item: &String| effects.get(item).copied().unwrap_or(0);
        let wrong = |is_wrong: fn(u64) -> bool| {
            let count = Life::items().filter(|item| is_wrong(of(item))).count();
            u64::try_from(count).unwrap_or(u64::MAX)
        };
        match self.checker {
            Checker::Once => wrong(|count| count != 1),
            Checker::NotTwice => wrong(|count| count > 1),
            Checker::Total => u64::from(of(&"value".to_owned()) != compare_and_set::WRITERS * ITEMS),
            Checker::Load => u64::from(of(&"call".to_owned()) > 2 * retry_budget::REQUESTS),
            Checker::None => 0,
        }
    }
}

/// The configuration of this name.
pub(crate) fn find(name: &str) -> Result<&'static Row> {
    match ALL.iter().find(|row| row.name == name) {
        Some(Row { waits_for: Some(why), .. }) => bail!("{name} {why}"),
        Some(row) => Ok(row),
        None => bail!("there is no configuration {name}; `list` prints them"),
    }
}

/// Prints all configurations with their vectors.
pub(crate) fn list() {
    for row in ALL {
        let Vector { identity, rung, placement, reversibility, domain } = row.vector;
        println!("{}{}", row.name, row.waits_for.map(|why| format!(" ({why})")).unwrap_or_default());
        println!(
            "  identity {identity} · rung {rung} · placement {placement} · {reversibility} · domain {domain}"
        );
        println!("  without its guard: {}", row.failure);
    }
}
