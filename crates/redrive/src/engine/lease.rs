//! Leases: events that workers outside the engine fetch, and settle later.
//!
//! For workers that are not written in Rust, or run elsewhere. A queue that is [pulled](super::QueueBuilder::pull)
//! has no handler here; its policy still decides what becomes of a failure. A lease is durable, and is judged by its
//! attempt: a late answer counts as long as nobody else was given the event since, also after a restart. Who does not
//! answer in time has made an attempt of unknown outcome.
//!
//! ```
//! use redrive::{Event, Redrive, Reply};
//! use std::time::Duration;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let redrive = Redrive::open("memory:").await?;
//! redrive.queue("mails").pull().await?;
//! redrive.start().await?; // looks after leases that nobody settles
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

use redrive_core::entry::{Change, Entry, Seq};
use redrive_core::event::{Cause, Mode, State, identity};
use redrive_core::observe::Outcome;
use redrive_core::scheduler::{Ending, Said, Told, judge};
use redrive_core::triage::Filter;
use redrive_core::{Event, Moment, Seeded};
use redrive_store::lease::{
    Decide, Held as Kept, Lapse, Lapsed, Lease as Call, LeaseSettle, LeaseSettled, Term,
};
use redrive_store::{Query, Store, StoreError};

use super::queue::Queue;
use super::{IntoReply, Redrive, Reply, observe};

/// How many events a call gives at most.
pub const LEASES_MAX: usize = 1_000;
/// How many bytes of payload a call gives where nobody says, roughly.
const BYTES_MAX: usize = 16 << 20;

/// How much a call for events gives at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How many events; never more than [`LEASES_MAX`].
    pub events: usize,
    /// How many bytes of payload in all: the event that goes over it is the last, so there is at least one.
    pub bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { events: LEASES_MAX, bytes: BYTES_MAX }
    }
}

/// An event that somebody outside has for a while.
#[derive(Clone, PartialEq)]
pub struct Lease {
    /// The event.
    pub event: Arc<Event>,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// Why it runs.
    pub mode: Mode,
    /// Whether later events of its key may have run before it: an operator put it back all the same.
    pub out_of_order: bool,
    /// Until when it is to be settled, or extended.
    pub until: SystemTime,
    /// What proves that it is the holder's.
    pub token: String,
}

/// What a call for events gives.
#[derive(Debug, Clone, PartialEq)]
pub struct Fetched {
    /// The leases.
    pub leases: Vec<Lease>,
    /// After how long there may be more: an event is due, or a lease is over; at once, where not all were given that
    /// are due. What is published meanwhile is not known here.
    pub next: Option<Duration>,
}

impl Lease {
    /// What is needed to settle it.
    #[must_use]
    pub fn held(&self) -> Held {
        let Event { tenant, queue, id, .. } = &*self.event;
        Held {
            tenant: tenant.clone(),
            queue: queue.clone(),
            id: id.clone(),
            attempt: self.attempt,
            token: self.token.clone(),
        }
    }

    /// The key for calls downstream: the same over all attempts, whoever makes them.
    #[must_use]
    pub fn idempotency_key(&self) -> String {
        let Event { tenant, queue, id, .. } = &*self.event;
        identity::downstream_key(tenant, queue, id, "")
    }
}

/// Without the token: logs are read by others than its holder.
impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { event, attempt, until, .. } = self;
        let mut lease = f.debug_struct("Lease");
        lease.field("event", event).field("attempt", attempt).field("until", until).finish_non_exhaustive()
    }
}

/// What somebody says who settles or extends a lease.
#[derive(Clone, PartialEq, Eq)]
pub struct Held {
    /// Of which tenant.
    pub tenant: String,
    /// Of which queue.
    pub queue: String,
    /// Of which event.
    pub id: String,
    /// Which attempt.
    pub attempt: u32,
    /// What proves that it is the holder's.
    pub token: String,
}

/// Without the token, as a [`Lease`].
impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tenant, queue, id, attempt, .. } = self;
        let mut held = f.debug_struct("Held");
        held.field("tenant", tenant).field("queue", queue).field("id", id).field("attempt", attempt);
        held.finish_non_exhaustive()
    }
}

impl Held {
    fn kept(self) -> Kept {
        let Self { tenant, queue, id, attempt, token } = self;
        Kept { tenant, queue, id, attempt, token: identity::token_hash(&token) }
    }
}

impl Redrive {
    /// Fetches up to `max` events of a queue that is pulled from, each for `time`.
    ///
    /// # Errors
    /// Where the queue is not set up here to be pulled from, or the store could not.
    pub async fn lease(&self, queue: &str, max: usize, time: Duration) -> Result<Vec<Lease>, StoreError> {
        let limits = Limits { events: max, ..Limits::default() };
        Ok(self.lease_for(queue, None, limits, time).await?.leases)
    }

    /// The same for one tenant alone, where one is named, and with when there may be more.
    ///
    /// # Errors
    /// As [`lease`](Self::lease).
    pub async fn lease_for(
        &self,
        queue: &str,
        tenant: Option<&str>,
        limits: Limits,
        time: Duration,
    ) -> Result<Fetched, StoreError> {
        let Some(queue) = self.0.queues.to_pull().into_iter().find(|known| known.name() == queue) else {
            let what = format!("the queue `{queue}` is not one that is pulled from; set it up with `pull`");
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
        let lease = |(entry, token): (Entry, String)| Lease {
            attempt: entry.progress.attempts + 1,
            mode: entry.progress.mode,
            out_of_order: entry.progress.out_of_order,
            event: entry.event,
            until: until.into(),
            token,
        };
        let next = leased.next_due.map(|due| due.since(at));
        Ok(Fetched { leases: leased.entries.into_iter().zip(tokens).map(lease).collect(), next })
    }

    /// Makes leases good for `time` from now. The answers are in their order.
    ///
    /// # Errors
    /// Where the store could not.
    pub async fn extend(&self, leases: Vec<Held>, time: Duration) -> Result<Vec<LeaseSettled>, StoreError> {
        let at = self.now();
        self.store().extend(leases.into_iter().map(Held::kept).collect(), at, at + time).await
    }

    /// Says what became of leased events. The answers are in their order; see [`LeaseSettled`].
    ///
    /// # Errors
    /// Where the store could not. The same call may be made again: what is done by then says `Already`, a retry is
    /// decided once more, and what is dead, dropped or expired is a conflict that says so.
    pub async fn settle(
        &self,
        replies: Vec<(Held, impl IntoReply)>,
    ) -> Result<Vec<LeaseSettled>, StoreError> {
        let at = self.now();
        let pulled = self.0.queues.to_pull();
        let mut settles = Vec::with_capacity(replies.len());
        let mut decided = Vec::with_capacity(replies.len());
        for (held, reply) in replies {
            let Some(queue) = pulled.iter().find(|known| known.name() == held.queue) else {
                let what = format!("the queue `{}` is not one that is pulled from", held.queue);
                return Err(StoreError::Broken { what, source: None });
            };
            let began = began(&held.token).unwrap_or(at);
            let (ending, seen) = (said(reply.into_reply(), began, at), Decided::default());
            let decide = decide(queue.clone(), ending.clone(), (began, at), &seen);
            settles.push(LeaseSettle { lease: held.kept(), at, decide });
            decided.push((queue.clone(), ending, seen));
        }
        let answers = self.store().settle_leased(settles).await?;
        for ((queue, ending, seen), answer) in decided.into_iter().zip(&answers) {
            if *answer == LeaseSettled::Applied {
                queue.meters.ended(&ending);
                seen.tell(&queue);
            }
        }
        Ok(answers)
    }
}

/// Whether somebody has leases of a queue that is not pulled from any more. Nobody asks for its events, so these have
/// to be let lapse by whoever runs it.
pub(super) async fn has_leases(store: &dyn Store, queue: &Queue) -> Result<bool, StoreError> {
    let filter = Filter::queue(queue.name());
    let mut query = Query { filter, state: Some(State::Running), after: None, limit: 1 };
    loop {
        let page = store.list(query.clone()).await?;
        if !page.events.is_empty() || page.next.is_none() {
            return Ok(!page.events.is_empty());
        }
        query.after = page.next;
    }
}

/// Deals with leases that nobody settled in time.
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

/// What was decided, to be told once it is written, and whether it was about a dead letter. The store may ask for a
/// decision more than once.
#[derive(Debug, Clone, Default)]
struct Decided(Arc<Mutex<BTreeMap<Seq, (Told, bool)>>>);

impl Decided {
    fn tell(&self, queue: &Queue) {
        for (told, was_dead) in std::mem::take(&mut *self.all()).values() {
            match told.change {
                // It was counted when it died; only the cause is another now.
                Change::Dead { .. } if *was_dead => observe::known_better(told),
                _ => observe::told(queue, told),
            }
        }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<Seq, (Told, bool)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The attempt ended with its lease, whenever that is noticed; what follows begins now.
fn lapsed(queue: Arc<Queue>, now: Moment, seen: &Decided) -> Lapse {
    let seen = seen.clone();
    Box::new(move |entry, Term { from, until }| {
        let cause = Some(Cause::new("lease", "its lease was over before it was settled"));
        let took = until.since(from);
        let ending = Ending { cause, took, ..Ending::new(Said::Outcome(Outcome::TimedOut)) };
        decide(queue.clone(), ending, (from, now), &seen)(entry, None)
    })
}

fn said(reply: Reply, began: Moment, now: Moment) -> Ending {
    let Reply { disposition, cause, result, is_victim: _ } = reply;
    let took = now.since(began);
    Ending { cause, result, took, ..Ending::new(Said::Outcome(disposition.into())) }
}

fn decide(queue: Arc<Queue>, ending: Ending, (began, now): (Moment, Moment), seen: &Decided) -> Decide {
    let seen = seen.clone();
    Box::new(move |entry, lapsed| {
        // The same waits each time that it is asked: a commit may be tried twice.
        let mut dice = Seeded::new(entry.seq.0 ^ now.as_nanos());
        let change = judge(&queue.plan, entry, began, &ending, now, &mut dice).unwrap_or(Change::Done);
        let change = Lapsed::bounded(lapsed, change);
        let told = Told { queue: 0, entry: entry.clone(), change: change.clone() };
        seen.all().insert(entry.seq, (told, lapsed.is_some()));
        change
    })
}

/// What only its holder knows, and when it was given.
fn token(at: Moment) -> Result<String, StoreError> {
    let mut secret = [0; 16];
    getrandom::fill(&mut secret).map_err(|error| StoreError::Passing {
        what: format!("the system gives no random numbers ({error})"),
        source: None,
    })?;
    let secret: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{:x}.{secret}", at.as_nanos() / 1_000_000))
}

/// When a token was given.
fn began(token: &str) -> Option<Moment> {
    let millis = u64::from_str_radix(token.split('.').next()?, 16).ok()?;
    Some(Moment::from_nanos(millis.saturating_mul(1_000_000)))
}
