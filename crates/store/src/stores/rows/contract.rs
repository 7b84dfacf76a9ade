//! What a store implements for the row engine.
//!
//! [`EventRows`] and [`OperatorRows`] read and write one row at a time: no branching and no policy, named for the
//! columns they touch. [`KeyOrder`] is what legitimately differs: SQLite stores which event of a key is blocked or
//! withheld, PostgreSQL computes the head of a key in the statement that asks.

use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::event::{Event, Fingerprint, State};
use redrive_core::ledger::{RequestScope, Resolution};
use redrive_core::queue_entry::{ParkFollowers, QueueEntry, Seq, StreamId};
use redrive_core::triage::{ActiveRule, CauseId, Filter, Job, JobId, Operator, RedriveOptions, Rule};

use super::Fault;
use super::advance::{Candidate, Candidates};
use super::retention::DeadRef;
use crate::operate::{AuditEntry, JobAdvance, Refusal};
use crate::store::{DeadLetterRetention, QueueSpec};
use crate::stores::shared::columns::Columns;
use crate::stores::shared::dedupe::DedupeRecord;
use crate::stores::shared::group::RedriveOutcome;
use crate::stores::shared::rows::{EventRow, Stream};
use crate::stores::shared::rules::Rules;
use crate::stores::shared::tracked::{RedrivenBy, TrackedEvent};

/// A future of a step's result. PostgreSQL's futures move between threads, so all of them are `Send`.
macro_rules! step {
    ($t:ty) => { impl Future<Output = Result<$t, Fault<Self::Error>>> + Send };
}

/// Streams, dedupe records, events and their counts, within one transaction.
pub(in crate::stores) trait EventRows: Send + Sized {
    /// The error of the database's driver.
    type Error: Send;

    /// Whether this transaction took events that an owner may have in memory: owners then load again.
    fn recall(&mut self) -> &mut bool;

    /// Notes a moment that a caller passed in: the store has no clock of its own.
    fn advance_clock(&mut self, at: Moment);

    /// The shard that an event belongs to.
    fn shard_of(&self, event: &Event) -> u32;

    /// A queue as it was declared.
    fn spec(&mut self, queue: &str) -> step!(Option<Arc<QueueSpec>>);

    /// The stream of a queue and a tenant.
    fn find_stream(&mut self, queue: &str, tenant: &str) -> step!(Option<Arc<Stream>>);

    /// The stream with this number.
    fn stream(&mut self, id: StreamId) -> step!(Option<Arc<Stream>>);

    /// The streams of a queue.
    fn streams_of(&mut self, queue: &str) -> step!(Vec<StreamId>);

    /// The stream of a declared queue and a tenant, created if there is none.
    fn open_stream(&mut self, queue: &str, tenant: &str) -> step!(Arc<Stream>);

    /// The next unused seq of a stream.
    fn new_seq(&mut self, stream: &Stream) -> step!(Seq);

    /// The dedupe record of an identity. A damaged one is refused.
    fn dedupe_record(&mut self, stream: StreamId, id: &str) -> step!(Option<DedupeRecord>);

    /// Inserts a dedupe record without an end, with the moments of publishing and of forgetting. `false` if the
    /// identity has one already.
    fn insert_dedupe_record(
        &mut self,
        identity: (StreamId, &str),
        fingerprint: Fingerprint,
        seq: Seq,
        times: (Moment, Moment),
    ) -> step!(bool);

    /// Writes `until` and the end of a dedupe record.
    fn update_dedupe_record(&mut self, record: &DedupeRecord) -> step!(());

    /// Deletes a dedupe record, and the ending that belongs to it.
    fn delete_dedupe_record(&mut self, record: &DedupeRecord) -> step!(());

    /// Whether only the dedupe record is left of an event. A discarded event whose time to be restored has passed is
    /// deleted.
    fn is_over(&mut self, record: &DedupeRecord) -> step!(bool);

    /// The event with this seq that never ran. A damaged one is refused.
    fn fresh_row(&mut self, seq: Seq, stream: &Stream) -> step!(Option<EventRow>);

    /// The event with this seq whose state is tracked. A damaged one is refused.
    fn tracked_row(&mut self, seq: Seq, stream: &Stream) -> step!(Option<TrackedEvent>);

    /// Inserts a tracked event.
    fn insert_tracked(&mut self, event: &TrackedEvent) -> step!(());

    /// Deletes a tracked event.
    fn delete_tracked(&mut self, seq: Seq) -> step!(());

    /// Writes a changed event: moves it from the fresh ones, or updates it among the tracked ones.
    fn write_tracked(&mut self, event: &TrackedEvent, was_fresh: bool) -> step!(());

    /// Writes the columns of a tracked event that change.
    fn write_columns(&mut self, seq: Seq, columns: &Columns) -> step!(());

    /// Counts one dead letter less.
    fn uncount_death(&mut self, stream: StreamId, cause: Option<CauseId>, was_holding: bool) -> step!(());

    /// Counts one redriven dead letter.
    fn count_redrive(
        &mut self,
        stream: StreamId,
        cause: Option<CauseId>,
        by: RedrivenBy,
        at: Moment,
    ) -> step!(());

    /// Counts how an event ended for the job that redrove it, if one did.
    fn charge(&mut self, by: Option<RedrivenBy>, outcome: RedriveOutcome) -> step!(());
}

/// Rules, jobs, the audit and everything else that an operator's command touches, within one transaction.
pub(in crate::stores) trait OperatorRows: EventRows {
    /// Locks the shards against their owners, in order. SQLite has one writer and no locks.
    fn lock_shards(&mut self) -> step!(());

    /// Fails if the disk has no room for new events.
    fn check_room(&mut self) -> step!(());

    /// The number of the next line in the audit.
    fn next_audit_number(&mut self) -> step!(u64);

    /// Writes a line of the audit.
    fn write_audit_line(&mut self, number: u64, by: &Operator, at: Moment, deed: &AuditEntry) -> step!(());

    /// Counts a command that took events from an owner: an owner that learns of it late sees the number.
    fn raise_version(&mut self) -> step!(());

    /// Resolves a request of the ledger whose outcome is unknown.
    fn resolve(&mut self, scope: &RequestScope, to: &Resolution, at: Moment) -> step!(Result<(), Refusal>);

    /// The active rules. An unreadable one holds nothing.
    fn rules(&mut self) -> step!(Arc<Rules>);

    /// Forgets the rules that were read: they changed.
    fn forget_rules(&mut self);

    /// Inserts a rule.
    fn insert_rule(&mut self, control: &ActiveRule) -> step!(());

    /// Deletes a rule. `false` if there was none.
    fn delete_rule(&mut self, rule: &Rule) -> step!(bool);

    /// A job. A damaged one is refused.
    fn job(&mut self, id: JobId) -> step!(Option<Job>);

    /// Writes a job.
    fn write_job(&mut self, job: &Job) -> step!(());

    /// The number of the next job.
    fn next_job_id(&mut self) -> step!(JobId);

    /// How many dead letters a filter matches, roughly.
    fn count_letters(&mut self, filter: &Filter) -> step!(u64);

    /// How many deaths there were.
    fn deaths(&mut self) -> step!(u64);

    /// Writes the counts that this transaction collected.
    fn flush_tallies(&mut self) -> step!(());

    /// The next dead letters of a job, at most `most`.
    fn candidates(&mut self, job: &Job, most: usize) -> step!(Candidates);

    /// Redrives dead letters that keep no order: no other row has to be read. With `announce`, owners are notified of
    /// each event; otherwise they are notified that there is something to load.
    fn redrive_plain(
        &mut self,
        letters: Vec<Candidate>,
        redrive: &RedriveOptions,
        job: JobId,
        step: &JobAdvance,
        announce: bool,
    ) -> step!(());

    /// The queues that keep only some of their dead letters.
    fn queues_with_retention(&mut self) -> step!(Vec<(String, DeadLetterRetention)>);

    /// How many dead letters of a queue do not block their key.
    fn passed_letters(&mut self, queue: &str) -> step!(u64);

    /// The oldest dead letter of a stream after another one that does not block its key.
    fn next_dead(&mut self, stream: StreamId, after: DeadRef) -> step!(Option<DeadRef>);
}

/// The order of keys: which event of a key may run.
pub(in crate::stores) trait KeyOrder: EventRows {
    /// The state of an event as a reader sees it: whether it is ready depends on its key and on the rules.
    fn state_of(&mut self, event: &TrackedEvent, stream: &Stream) -> step!(State);

    /// An event may run again: it is the head of its key, unless an earlier one is.
    fn revive(&mut self, event: TrackedEvent, was_fresh: bool, stream: &Arc<Stream>) -> step!(());

    /// An event is dead: counts it, and blocks or unblocks its key, as `park` says.
    fn bury(
        &mut self,
        event: TrackedEvent,
        was_fresh: bool,
        park: ParkFollowers,
        stream: &Arc<Stream>,
    ) -> step!(Option<QueueEntry>);

    /// The event `after` no longer blocks its key: the next one may run.
    fn go_on(&mut self, stream: &Arc<Stream>, key: &str, after: Seq) -> step!(Option<QueueEntry>);

    /// The dead letter at the head of a key, if it blocks the key.
    fn parking_head(&mut self, stream: &Stream, key: &str) -> step!(Option<TrackedEvent>);

    /// All dead letters that block a key. Damaged ones are left out.
    fn parked_letters(&mut self, stream: &Stream, key: &str) -> step!(Vec<TrackedEvent>);

    /// Ends the block of a dead letter on its key.
    fn unblock(&mut self, stream: &Arc<Stream>, dead: TrackedEvent) -> step!(Option<QueueEntry>);

    /// Notifies the owner of an event that is due now, if it may run.
    fn announce_if_head(&mut self, event: TrackedEvent, stream: &Arc<Stream>) -> step!(());

    /// A new rule withholds a key: its head may not run any more.
    fn withhold(&mut self, stream: &Arc<Stream>, key: &str) -> step!(());

    /// A rule over a key was lifted: its head may run, unless another rule withholds it.
    fn hand_out(&mut self, stream: &Arc<Stream>, key: &str) -> step!(());
}

/// Everything that the row engine needs of a transaction.
pub(in crate::stores) trait Rows: OperatorRows + KeyOrder {}

impl<R: OperatorRows + KeyOrder> Rows for R {}
