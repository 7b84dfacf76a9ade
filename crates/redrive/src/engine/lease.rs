//! Leases: workers outside the engine fetch events and settle them later.
//!
//! For workers that are not written in Rust, or run elsewhere. A queue that is [pulled](super::QueueBuilder::pull)
//! from has no handler here; its policy still decides what happens after a failure. A lease is durable and belongs to
//! one attempt: a late answer counts as long as no other worker has leased the event since, also after a restart. If a
//! worker does not answer in time, its attempt has an unknown outcome.
//!
//! ```
//! use redrive::{Event, Redrive, Reply};
//! use std::time::Duration;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let redrive = Redrive::open("memory:").await?;
//! redrive.queue("mails").pull().await?;
//! redrive.start().await?; // also expires leases that are not settled
//! redrive.publish(Event::new("mails", "mail-17")).await?;
//!
//! for lease in redrive.lease("mails", 10, Duration::from_secs(30)).await? {
//!     // … the work …
//!     redrive.settle(vec![(lease.held(), Reply::ok())]).await?;
//! }
//! # redrive.shutdown(Duration::ZERO).await?;
//! # Ok(())
//! # }
//! # tokio::runtime::Runtime::new().unwrap().block_on(run()).unwrap();
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use redrive_core::event::{Cause, Mode, State, identity};
use redrive_core::observe::Outcome;
use redrive_core::queue_entry::{EventChange, QueueEntry, Seq};
use redrive_core::scheduler::{AttemptEnd, EndedAttempt, SettledEvent, judge};
use redrive_core::triage::Filter;
use redrive_core::{Event, Moment, SeededRandom};
use redrive_store::lease::{
    DeadByExpiry, DecideExpiry, DecideSettle, LeasePeriod, LeaseRef as Kept, LeaseRequest as Call,
    LeaseSettle, LeaseSettleResult,
};
use redrive_store::{EventQuery, Store, StoreError};

use super::queue::Queue;
use super::{IntoReply, Redrive, Reply, observe};

/// How many events a call returns at most.
pub const LEASES_MAX: usize = 1_000;
/// How many bytes of payload a call returns by default, roughly.
const BYTES_MAX: usize = 16 << 20;

/// How much a call for events returns at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseLimits {
    /// How many events; never more than [`LEASES_MAX`].
    pub events: usize,
    /// How many bytes of payload in all: the event that exceeds it is the last, so there is at least one.
    pub bytes: usize,
}

impl Default for LeaseLimits {
    fn default() -> Self {
        Self { events: LEASES_MAX, bytes: BYTES_MAX }
    }
}

/// An event that a worker outside the engine holds for a while.
#[derive(Clone, PartialEq)]
pub struct Lease {
    /// The event.
    pub event: Arc<Event>,
    /// The number of this attempt, from 1.
    pub attempt: u32,
    /// Why it runs.
    pub mode: Mode,
    /// Whether later events of its key may have run before it: an operator redrove it out of order.
    pub out_of_order: bool,
    /// The deadline: settle or extend the lease before it.
    pub until: SystemTime,
    /// Proves that the caller holds the lease.
    pub token: String,
}

/// The result of a call for events.
#[derive(Debug, Clone, PartialEq)]
pub struct LeasedBatch {
    /// The leases.
    pub leases: Vec<Lease>,
    /// After how long there may be more: an event becomes due, or a lease runs out; zero if not all due events were
    /// returned. Events published meanwhile are not known here.
    pub next: Option<Duration>,
}

impl Lease {
    /// The reference with which to settle it.
    #[must_use]
    pub fn held(&self) -> LeaseHandle {
        let Event { tenant, queue, id, .. } = &*self.event;
        LeaseHandle {
            tenant: tenant.clone(),
            queue: queue.clone(),
            id: id.clone(),
            attempt: self.attempt,
            token: self.token.clone(),
        }
    }

    /// The idempotency key for calls downstream: the same over all attempts, whichever worker makes them.
    #[must_use]
    pub fn idempotency_key(&self) -> String {
        let Event { tenant, queue, id, .. } = &*self.event;
        identity::downstream_key(tenant, queue, id, "")
    }
}

/// Without the token: a log has more readers than the lease has holders.
impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { event, attempt, until, .. } = self;
        let mut lease = f.debug_struct("Lease");
        lease.field("event", event).field("attempt", attempt).field("until", until).finish_non_exhaustive()
    }
}

/// A reference to a lease, for settling or extending it.
#[derive(Clone, PartialEq, Eq)]
pub struct LeaseHandle {
    /// The tenant.
    pub tenant: String,
    /// The queue.
    pub queue: String,
    /// The event id.
    pub id: String,
    /// The number of the attempt.
    pub attempt: u32,
    /// Proves that the caller holds the lease.
    pub token: String,
}

/// Without the token, as a [`Lease`].
impl fmt::Debug for LeaseHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tenant, queue, id, attempt, .. } = self;
        let mut held = f.debug_struct("Held");
        held.field("tenant", tenant).field("queue", queue).field("id", id).field("attempt", attempt);
        held.finish_non_exhaustive()
    }
}

impl LeaseHandle {
    fn kept(self) -> Kept {
        let Self { tenant, queue, id, attempt, token } = self;
        Kept { tenant, queue, id, attempt, token: identity::token_hash(&token) }
    }
}

impl Redrive {
    /// Leases up to `max` events of a queue that is pulled from, each for `time`.
    ///
    /// # Errors
    /// If the queue is not set up here to be pulled from, or the store operation fails.
    pub async fn lease(&self, queue: &str, max: usize, time: Duration) -> Result<Vec<Lease>, StoreError> {
        let limits = LeaseLimits { events: max, ..LeaseLimits::default() };
        Ok(self.lease_for(queue, None, limits, time).await?.leases)
    }

    /// The same for one tenant, if given, with the time after which there may be more.
    ///
    /// # Errors
    /// As [`lease`](Self::lease).
    pub async fn lease_for(
        &self,
        queue: &str,
        tenant: Option<&str>,
        limits: LeaseLimits,
        time: Duration,
    ) -> Result<LeasedBatch, StoreError> {
        let Some(queue) = self.0.queues.to_pull().into_iter().find(|known| known.name() == queue) else {
            let what = format!("workers cannot pull from the queue `{queue}`; set it up with `pull`");
            return Err(StoreError::Broken { what, source: None });
        };
        let at = self.now();
        let until = at + time;
        let tokens = (0..limits.events.min(LEASES_MAX)).map(|_| token(at)).collect::<Result<Vec<_>, _>>()?;
        let seen = Decided::default();
        let call = Call {
            queue: queue.name().to_owned(),
            tenant: tenant.map(str::to_owned),
            at,
            until,
            tokens: tokens.iter().map(|token| identity::token_hash(token)).collect(),
            bytes_max: limits.bytes,
            lapsed: lapsed(queue.clone(), at, &seen),
        };
        let leased = self.store().lease(call).await?;
        seen.tell(&queue);
        let lease = |(entry, token): (QueueEntry, String)| Lease {
            attempt: entry.progress.attempts + 1,
            mode: entry.progress.mode,
            out_of_order: entry.progress.out_of_order,
            event: entry.event,
            until: until.into(),
            token,
        };
        let next = leased.next_due.map(|due| due.since(at));
        Ok(LeasedBatch { leases: leased.entries.into_iter().zip(tokens).map(lease).collect(), next })
    }

    /// Extends leases to `time` from now. The answers are in the order of the leases.
    ///
    /// # Errors
    /// If the store operation fails.
    pub async fn extend(
        &self,
        leases: Vec<LeaseHandle>,
        time: Duration,
    ) -> Result<Vec<LeaseSettleResult>, StoreError> {
        let at = self.now();
        self.store().extend(leases.into_iter().map(LeaseHandle::kept).collect(), at, at + time).await
    }

    /// Settles leased events. The answers are in the order of the leases; see [`LeaseSettleResult`].
    ///
    /// # Errors
    /// If the store operation fails. The call may be repeated: an event that is done answers `Already`, a retry is
    /// decided again, and an event that is dead, dropped or expired answers with a conflict that says so.
    pub async fn settle(
        &self,
        replies: Vec<(LeaseHandle, impl IntoReply)>,
    ) -> Result<Vec<LeaseSettleResult>, StoreError> {
        let at = self.now();
        let pulled = self.0.queues.to_pull();
        let mut settles = Vec::with_capacity(replies.len());
        let mut decided = Vec::with_capacity(replies.len());
        for (held, reply) in replies {
            let Some(queue) = pulled.iter().find(|known| known.name() == held.queue) else {
                let what = format!("workers cannot pull from the queue `{}`", held.queue);
                return Err(StoreError::Broken { what, source: None });
            };
            let began = began(&held.token).unwrap_or(at);
            let (ended, seen) = (said(reply.into_reply(), began, at), Decided::default());
            let decide = decide(queue.clone(), ended.clone(), (began, at), &seen);
            settles.push(LeaseSettle { lease: held.kept(), at, decide });
            decided.push((queue.clone(), ended, seen));
        }
        let answers = self.store().settle_leased(settles).await?;
        for ((queue, ended, seen), answer) in decided.into_iter().zip(&answers) {
            if *answer == LeaseSettleResult::Applied {
                queue.meters.ended(&ended);
                seen.tell(&queue);
            }
        }
        Ok(answers)
    }
}

/// Whether there are leases of a queue that is no longer pulled from. No worker asks for its events, so the process
/// that runs the queue must let them lapse.
pub(super) async fn has_leases(store: &dyn Store, queue: &Queue) -> Result<bool, StoreError> {
    let filter = Filter::queue(queue.name());
    let mut query = EventQuery { filter, state: Some(State::Running), after: None, limit: 1 };
    loop {
        let page = store.list(query.clone()).await?;
        if !page.events.is_empty() || page.next.is_none() {
            return Ok(!page.events.is_empty());
        }
        query.after = page.next;
    }
}

/// Lets leases lapse that were not settled in time.
pub(super) fn let_lapse(
    store: &Arc<dyn Store>,
    queue: &Arc<Queue>,
    at: Moment,
) -> impl Future<Output = Result<usize, StoreError>> + Send + use<> {
    let (seen, queue) = (Decided::default(), queue.clone());
    let leasing = store.lease(Call {
        queue: queue.name().to_owned(),
        tenant: None,
        at,
        until: at,
        tokens: Vec::new(),
        bytes_max: 0,
        lapsed: lapsed(queue.clone(), at, &seen),
    });
    async move {
        let lapsed = leasing.await?.lapsed;
        seen.tell(&queue);
        Ok(lapsed)
    }
}

/// Decisions, reported once they are written, and whether each was about a dead letter. The store may ask for a
/// decision more than once.
#[derive(Debug, Clone, Default)]
struct Decided(Arc<Mutex<BTreeMap<Seq, (SettledEvent, bool)>>>);

impl Decided {
    fn tell(&self, queue: &Queue) {
        for (told, was_dead) in std::mem::take(&mut *self.all()).values() {
            match told.change {
                // It was counted when it died; only its cause changed.
                EventChange::Dead { .. } if *was_dead => observe::known_better(told),
                _ => observe::told(queue, told),
            }
        }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<Seq, (SettledEvent, bool)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The attempt ended with its lease, whenever that is noticed; its consequences start now.
fn lapsed(queue: Arc<Queue>, now: Moment, seen: &Decided) -> DecideExpiry {
    let seen = seen.clone();
    Box::new(move |entry, LeasePeriod { from, until }| {
        let cause = Some(Cause::new("lease", "the lease ended before the attempt was settled"));
        let took = until.since(from);
        let ended = EndedAttempt { cause, took, ..EndedAttempt::new(AttemptEnd::Outcome(Outcome::TimedOut)) };
        decide(queue.clone(), ended, (from, now), &seen)(entry, None)
    })
}

fn said(reply: Reply, began: Moment, now: Moment) -> EndedAttempt {
    let Reply { disposition, cause, result, is_victim: _, is_put_off: _ } = reply;
    let took = now.since(began);
    EndedAttempt { cause, result, took, ..EndedAttempt::new(AttemptEnd::Outcome(disposition.into())) }
}

fn decide(
    queue: Arc<Queue>,
    ended: EndedAttempt,
    (began, now): (Moment, Moment),
    seen: &Decided,
) -> DecideSettle {
    let seen = seen.clone();
    Box::new(move |entry, lapsed| {
        // The same waits for each call: a commit may be tried twice.
        let mut random = SeededRandom::new(entry.seq.0 ^ now.as_nanos());
        let change = judge(&queue.plan, entry, began, &ended, now, &mut random).unwrap_or(EventChange::Done);
        let change = DeadByExpiry::bounded(lapsed, change);
        let told = SettledEvent { queue: 0, entry: entry.clone(), change: change.clone() };
        seen.all().insert(entry.seq, (told, lapsed.is_some()));
        change
    })
}

/// A secret of the holder, with the moment it was issued.
fn token(at: Moment) -> Result<String, StoreError> {
    let mut secret = [0; 16];
    getrandom::fill(&mut secret).map_err(|error| StoreError::Passing {
        what: format!("the system gave no random bytes ({error})"),
        source: None,
    })?;
    let secret: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{:x}.{secret}", at.as_nanos() / 1_000_000))
}

/// When a token was issued.
fn began(token: &str) -> Option<Moment> {
    let millis = u64::from_str_radix(token.split('.').next()?, 16).ok()?;
    Some(Moment::from_nanos(millis.saturating_mul(1_000_000)))
}
