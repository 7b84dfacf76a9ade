//! **Redrive: do it again, and have it take effect once.**
//!
//! A timeout does not tell you whether the operation happened. Redrive is what you do about it. This crate is the
//! entry point to both halves: retrying calls, with policies, classifiers, budgets and several ways to call through
//! them; and durable events (`engine`, behind the features `engine` and `sqlite`), with the idempotency ledger of HTTP
//! APIs (`api`).
//!
//! # Retry a call
//!
//! ```
//! use redrive::prelude::*;
//! use std::io;
//!
//! async fn fetch() -> Result<String, io::Error> {
//!     Ok("page".to_owned())
//! }
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let policy = Policy::default();
//! let page = fetch.retry(&policy).classify(classify::io).await?;
//! # Ok(())
//! # }
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(run()).unwrap();
//! ```
//!
//! What happened there, and what happens by default:
//!
//! - **Only errors that are known to be transient are retried.** The classifier says which errors these are; an error
//!   that it does not know is permanent, and is reported as `unclassified`.
//! - **At most 3 attempts**, waits from 100 ms doubling to 10 s, drawn with full jitter ([`Backoff`],
//!   [`Jitter`]).
//! - **A [`Budget`]**: over all callers of this policy, retries add at most a tenth to the load (and 10 a
//!   second).
//! - **The caller's own error comes back**, inside a [`Stopped`] that says why: one [`StopReason`], the
//!   attempts made, the time waited, and whether the effect may have happened.
//! - **Layers do not multiply**: a retry inside this one makes one attempt. See [`scope`].
//!
//! # Ways to call
//!
//! | way | for | |
//! |---|---|---|
//! | postfix | closures and functions that make a fresh future | [`Retry`] |
//! | session | loops that borrow `&mut self` | [`Start`], [`Session`] |
//! | blocking | code without async | [`blocking`] |
//! | tower layer | services | `http::RetryLayer` (feature `http`) |
//! | reqwest client | HTTP calls | `http::Client` (feature `reqwest`) |
//!
//! All of them take the same [`Policy`], and every clone of a policy shares its budget and breaker. The async ones
//! wait on tokio's timers: they need a runtime with time enabled, as `#[tokio::main]` has.
//!
//! Examples in the inner crates name the crate an item comes from; here, read `redrive` for `redrive_core` and
//! `redrive_retry`, and `redrive::http` for `redrive_http`.
//!
//! # Features
//!
//! None is on by default.
//!
//! | feature | brings |
//! |---|---|
//! | `engine` | durable events, with a store in memory; the dedupe `window`; `testing`, for your tests |
//! | `sqlite` | both in a SQLite file; turns on `engine`, brings SQLite itself |
//! | `postgres` | events in a PostgreSQL database, for many processes; turns on `engine`, brings the driver |
//! | `kafka` | consumers of Kafka under a policy: retry topics, dead letters, order by key; turns on `engine`, compiles librdkafka |
//! | `http` | tower layers for both sides, statuses, headers |
//! | `api` | retry-safe APIs: the idempotent layer over a store, for axum; turns on `engine` and `http` |
//! | `reqwest` | the client wrapper and its classifier; turns on `http` |
//! | `seal` | encrypts stored answers of requests; turns on `http` |
//! | `tracing`, `metrics` | observers, spans around attempts, the engine's logs and counters |
//! | `sqlx`, `rusqlite`, `tonic`, `rdkafka` | classifiers for those crates' errors |
//! | `serde` | policies in configuration files |

pub mod cas;

pub mod classify;

pub mod observe;

#[cfg(feature = "http")]
pub mod http;

#[cfg(feature = "engine")]
pub mod engine;

#[cfg(feature = "api")]
pub mod api;

#[cfg(feature = "engine")]
pub mod window;

#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub mod transaction;

#[cfg(feature = "engine")]
pub mod desk;

#[cfg(feature = "postgres")]
pub mod postgres;

#[cfg(feature = "kafka")]
pub mod kafka;

#[cfg(feature = "engine")]
pub mod testing;

#[cfg(feature = "engine")]
mod address;

pub mod sequence;

pub mod prelude;

#[cfg(feature = "api")]
pub use api::{CommittedReply, Operation};
#[cfg(feature = "engine")]
pub use engine::{AfterDead, Delivery, Failure, Redrive, Reply, Transaction};
#[cfg(feature = "engine")]
pub use redrive_core::event::EventId;
#[cfg(feature = "engine")]
pub use redrive_core::{Event, event, triage};
/// The stores themselves, for [`engine::OpenOptions::over`].
#[cfg(feature = "engine")]
pub use redrive_store as store;
#[cfg(feature = "engine")]
pub use redrive_store::{EventPage, EventQuery, EventStatus, PublishError, Published, StoreError};
/// The SQLite library whose connection a [`Transaction`] gives.
#[cfg(feature = "sqlite")]
pub use rusqlite;

/// Types for configuration files.
#[cfg(feature = "serde")]
pub use redrive_core::config;
pub use redrive_core::{
    Backoff, Breaker, Budget, Classify, Clock, Disposition, Executed, Fault, Jitter, Limit, Moment, Observer,
    Policy, PolicyBuilder, PolicyError, RandomSource, Rate, Report, SeededRandom, StopReason, Stopped,
    backoff, breaker, budget, disposition, jitter, limit, names, policy, rate, report, run,
};
pub use redrive_retry::{
    Attempt, Reported, Retry, RetryCall, Session, Start, blocking, clock, instant, moment, retry, scope,
    session,
};

#[doc = include_str!("problems.md")]
pub mod problems {}

/// The README's examples, compiled.
#[cfg(all(doctest, feature = "api", feature = "sqlite"))]
#[doc = include_str!("../../../README.md")]
pub struct Readme;

/// The guide's examples, run.
#[cfg(all(doctest, feature = "reqwest", feature = "serde", feature = "tracing", feature = "metrics"))]
#[doc = include_str!("../../../docs/guides/retrying.md")]
pub struct Guide;

/// The engine guide's examples, run.
#[cfg(all(doctest, feature = "sqlite"))]
#[doc = include_str!("../../../docs/guides/durable-events.md")]
pub struct EngineGuide;

/// The examples of the page on handlers, run.
#[cfg(all(doctest, feature = "sqlite"))]
#[doc = include_str!("../../../docs/guides/handlers.md")]
pub struct HandlersGuide;

/// The examples of the page on the operators' desk, run.
#[cfg(all(doctest, feature = "engine"))]
#[doc = include_str!("../../../docs/operate/desk.md")]
pub struct DeskGuide;

/// The examples of the page on retry-safe APIs, run.
#[cfg(all(doctest, feature = "api"))]
#[doc = include_str!("../../../docs/guides/idempotency.md")]
pub struct IdempotencyGuide;

/// The examples of the page on stored answers, run.
#[cfg(all(doctest, feature = "api", feature = "seal"))]
#[doc = include_str!("../../../docs/guides/stored-answers.md")]
pub struct AnswersGuide;

/// The examples of the page on the user's own transaction, compiled.
#[cfg(all(doctest, feature = "api", feature = "postgres"))]
#[doc = include_str!("../../../docs/guides/outbox.md")]
pub struct OutboxGuide;

/// The examples of the page on Kafka, compiled.
#[cfg(all(doctest, feature = "kafka"))]
#[doc = include_str!("../../../docs/guides/kafka.md")]
pub struct KafkaGuide;

/// The window guide's examples, run.
#[cfg(all(doctest, feature = "sqlite"))]
#[doc = include_str!("../../../docs/guides/dedupe-window.md")]
pub struct WindowGuide;

/// The examples of the page on errors, run.
#[cfg(all(doctest, feature = "engine"))]
#[doc = include_str!("../../../docs/reference/errors.md")]
pub struct ErrorsGuide;

/// The ladder guide's examples, run.
#[cfg(all(doctest, feature = "sqlite"))]
#[doc = include_str!("../../../docs/guides/ladder.md")]
pub struct LadderGuide;
