//! A transaction under the [row engine](crate::stores::rows).

use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::event::{Event, Fingerprint, State};
use redrive_core::ledger::{RequestScope, Resolution};
use redrive_core::queue_entry::{ParkFollowers, QueueEntry, Seq, StreamId};
use redrive_core::triage::{ActiveRule, CauseId, Filter, Job, JobId, Operator, RedriveOptions, Rule};

use super::database::TxFuture;
use super::events::dedupe::{DedupeRecord, End};
use super::events::fresh::{Damage, EventRow, Stream};
use super::events::tracked::{RedrivenBy, RowState, TrackedEvent};
use super::faults::{Step, damaged};
use super::tx::{OwnTx, one, run};
use crate::operate::{AuditEntry, CommandResult, JobAdvance, OperatorCommand, Refusal};
use crate::store::{DeadLetterRetention, QueueSpec};
use crate::stores::rows::act::{event_of, stamp};
use crate::stores::rows::advance::{Candidate, Candidates, advance};
use crate::stores::rows::contract::{EventRows, KeyOrder, OperatorRows};
use crate::stores::rows::operate::operate;
use crate::stores::rows::retention::{DeadRef, enforce};
use crate::stores::shared::columns::Columns;
use crate::stores::shared::group::RedriveOutcome;
use crate::stores::shared::numbers::{bits, seq};
use crate::stores::shared::rules::Rules;

/// The row engine's functions over a transaction of this store.
///
/// Each future is boxed here, where its type has no borrowed lifetime left to infer: inside another `async` block the
/// compiler could not prove that it is `Send`.
impl OwnTx {
    pub(super) fn operate<'a>(&'a mut self, order: &'a OperatorCommand) -> TxFuture<'a, CommandResult> {
        Box::pin(operate(self, order))
    }

    pub(super) fn advance<'a>(&'a mut self, step: &'a JobAdvance) -> TxFuture<'a, Option<Job>> {
        Box::pin(advance(self, step))
    }

    /// Lifts expired rules, and purges dead letters beyond what their queue keeps.
    pub(super) fn enforce_retention(&mut self, now: Moment) -> TxFuture<'_, usize> {
        Box::pin(enforce(self, now))
    }

    /// Writes on a dedupe record how its event ended, and remembers it for long enough.
    pub(super) fn stamp<'a>(
        &'a mut self,
        stream: &'a Stream,
        id: &'a str,
        at: Moment,
        end: Option<End>,
    ) -> TxFuture<'a, ()> {
        Box::pin(stamp(self, stream, id, at, end))
    }

    /// The event of a dedupe record, and whether it never ran.
    pub(super) fn event_of<'a>(
        &'a mut self,
        record: &'a DedupeRecord,
        stream: &'a Stream,
    ) -> TxFuture<'a, Option<(TrackedEvent, bool)>> {
        Box::pin(event_of(self, record, stream))
    }

    /// Counts a command that took events from an owner.
    pub(super) async fn raise_version(&mut self) -> sqlx::Result<()> {
        run!(self, "UPDATE redrive.meta SET orders = orders + 1").map(drop)
    }
}

impl EventRows for OwnTx {
    type Error = sqlx::Error;

    fn recall(&mut self) -> &mut bool {
        &mut self.recall
    }

    fn advance_clock(&mut self, at: Moment) {
        Self::advance_clock(self, at);
    }

    fn shard_of(&self, event: &Event) -> u32 {
        Self::shard_of(self, event)
    }

    async fn spec(&mut self, queue: &str) -> Step<Option<Arc<QueueSpec>>> {
        Ok(Self::spec(self, queue).await?)
    }

    async fn find_stream(&mut self, queue: &str, tenant: &str) -> Step<Option<Arc<Stream>>> {
        Ok(Self::find_stream(self, queue, tenant).await?)
    }

    async fn stream(&mut self, id: StreamId) -> Step<Option<Arc<Stream>>> {
        Ok(Self::stream(self, id).await?)
    }

    async fn streams_of(&mut self, queue: &str) -> Step<Vec<StreamId>> {
        Ok(self.streams(Some(queue), None).await?.iter().map(|stream| stream.id).collect())
    }

    async fn open_stream(&mut self, queue: &str, tenant: &str) -> Step<Arc<Stream>> {
        Ok(self.db.open_stream(queue, tenant).await?)
    }

    async fn new_seq(&mut self, stream: &Stream) -> Step<Seq> {
        Ok(seq(stream.id, bits(one!(self, "SELECT nextval('redrive.place')")?)))
    }

    async fn dedupe_record(&mut self, stream: StreamId, id: &str) -> Step<Option<DedupeRecord>> {
        self.dedupe(stream, id).await
    }

    async fn insert_dedupe_record(
        &mut self,
        identity: (StreamId, &str),
        fingerprint: Fingerprint,
        seq: Seq,
        times: (Moment, Moment),
    ) -> Step<bool> {
        Ok(self.insert_dedupe(identity, fingerprint, seq, times).await?)
    }

    async fn update_dedupe_record(&mut self, record: &DedupeRecord) -> Step<()> {
        Ok(self.update_dedupe(record).await?)
    }

    async fn delete_dedupe_record(&mut self, record: &DedupeRecord) -> Step<()> {
        Ok(self.delete_dedupe_at(record.stream, &record.id, record.seq).await?)
    }

    async fn is_over(&mut self, record: &DedupeRecord) -> Step<bool> {
        Ok(Self::is_over(self, record).await?)
    }

    async fn fresh_row(&mut self, seq: Seq, stream: &Stream) -> Step<Option<EventRow>> {
        let found = self.fresh(seq, stream).await?.transpose();
        found.map_err(|Damage| damaged("fresh", seq.0).into())
    }

    async fn tracked_row(&mut self, seq: Seq, stream: &Stream) -> Step<Option<TrackedEvent>> {
        let found = self.tracked(seq, stream).await?.transpose();
        found.map_err(|Damage| damaged("tracked", seq.0).into())
    }

    async fn insert_tracked(&mut self, event: &TrackedEvent) -> Step<()> {
        Ok(Self::insert_tracked(self, event).await?)
    }

    async fn delete_tracked(&mut self, seq: Seq) -> Step<()> {
        Ok(Self::delete_tracked(self, seq).await.map(drop)?)
    }

    async fn write_tracked(&mut self, event: &TrackedEvent, was_fresh: bool) -> Step<()> {
        Ok(self.keep(event, was_fresh).await?)
    }

    async fn write_columns(&mut self, seq: Seq, columns: &Columns) -> Step<()> {
        Ok(self.update_columns(seq, columns).await?)
    }

    async fn uncount_death(
        &mut self,
        stream: StreamId,
        cause: Option<CauseId>,
        was_holding: bool,
    ) -> Step<()> {
        Self::uncount_death(self, stream, cause, was_holding);
        Ok(())
    }

    async fn count_redrive(
        &mut self,
        stream: StreamId,
        cause: Option<CauseId>,
        by: RedrivenBy,
        at: Moment,
    ) -> Step<()> {
        Self::count_redrive(self, stream, cause, by, at);
        Ok(())
    }

    async fn charge(&mut self, by: Option<RedrivenBy>, outcome: RedriveOutcome) -> Step<()> {
        Self::charge(self, by, outcome);
        Ok(())
    }
}

impl OperatorRows for OwnTx {
    async fn lock_shards(&mut self) -> Step<()> {
        Ok(Self::lock_shards(self).await?)
    }

    async fn check_room(&mut self) -> Step<()> {
        Ok(())
    }

    async fn next_audit_number(&mut self) -> Step<u64> {
        Ok(self.next_line().await?)
    }

    async fn write_audit_line(
        &mut self,
        number: u64,
        by: &Operator,
        at: Moment,
        deed: &AuditEntry,
    ) -> Step<()> {
        Ok(self.write_line(number, by, at, deed).await?)
    }

    async fn raise_version(&mut self) -> Step<()> {
        Ok(Self::raise_version(self).await?)
    }

    async fn resolve(
        &mut self,
        scope: &RequestScope,
        to: &Resolution,
        at: Moment,
    ) -> Step<Result<(), Refusal>> {
        Self::resolve(self, scope, to, at).await
    }

    async fn rules(&mut self) -> Step<Arc<Rules>> {
        Self::rules(self).await
    }

    fn forget_rules(&mut self) {
        self.rules = None;
    }

    async fn insert_rule(&mut self, control: &ActiveRule) -> Step<()> {
        Ok(Self::insert_rule(self, control).await?)
    }

    async fn delete_rule(&mut self, rule: &Rule) -> Step<bool> {
        Ok(Self::delete_rule(self, rule).await?)
    }

    async fn job(&mut self, id: JobId) -> Step<Option<Job>> {
        Self::job(self, id).await
    }

    async fn write_job(&mut self, job: &Job) -> Step<()> {
        Ok(Self::write_job(self, job).await?)
    }

    async fn next_job_id(&mut self) -> Step<JobId> {
        Ok(JobId(bits(one!(self, "SELECT nextval('redrive.job_number')")?)))
    }

    async fn count_letters(&mut self, filter: &Filter) -> Step<u64> {
        self.how_many(filter).await
    }

    async fn deaths(&mut self) -> Step<u64> {
        Ok(Self::deaths(self).await?)
    }

    async fn flush_tallies(&mut self) -> Step<()> {
        self.write_counts().await
    }

    async fn candidates(&mut self, job: &Job, most: usize) -> Step<Candidates> {
        Self::candidates(self, job, most).await
    }

    async fn redrive_plain(
        &mut self,
        letters: Vec<Candidate>,
        redrive: &RedriveOptions,
        job: JobId,
        step: &JobAdvance,
        announce: bool,
    ) -> Step<()> {
        for letter in letters {
            Self::redrive_plain(self, letter, redrive, job, step, announce).await?;
        }
        Ok(())
    }

    async fn queues_with_retention(&mut self) -> Step<Vec<(String, DeadLetterRetention)>> {
        Ok(Self::queues_with_retention(self).await?)
    }

    async fn passed_letters(&mut self, queue: &str) -> Step<u64> {
        Ok(Self::passed_letters(self, queue).await?)
    }

    async fn next_dead(&mut self, stream: StreamId, after: DeadRef) -> Step<Option<DeadRef>> {
        Ok(Self::next_dead(self, stream, after).await?)
    }
}

impl KeyOrder for OwnTx {
    async fn state_of(&mut self, event: &TrackedEvent, stream: &Stream) -> Step<State> {
        let view = self.view().await?;
        self.place(event, stream, &view).await
    }

    async fn revive(&mut self, event: TrackedEvent, was_fresh: bool, stream: &Arc<Stream>) -> Step<()> {
        Self::revive(self, event, was_fresh, stream).await
    }

    async fn bury(
        &mut self,
        event: TrackedEvent,
        was_fresh: bool,
        park: ParkFollowers,
        stream: &Arc<Stream>,
    ) -> Step<Option<QueueEntry>> {
        Self::bury(self, event, was_fresh, park, stream).await
    }

    async fn go_on(&mut self, stream: &Arc<Stream>, key: &str, after: Seq) -> Step<Option<QueueEntry>> {
        Self::go_on(self, stream, key, after).await
    }

    async fn parking_head(&mut self, stream: &Stream, key: &str) -> Step<Option<TrackedEvent>> {
        Self::parking_head(self, stream, key).await
    }

    async fn parked_letters(&mut self, stream: &Stream, key: &str) -> Step<Vec<TrackedEvent>> {
        Ok(Self::parked_letters(self, stream, key).await?)
    }

    async fn unblock(&mut self, stream: &Arc<Stream>, dead: TrackedEvent) -> Step<Option<QueueEntry>> {
        self.let_go(stream, dead).await
    }

    async fn announce_if_head(&mut self, event: TrackedEvent, stream: &Arc<Stream>) -> Step<()> {
        let is_withheld = match event.row.key() {
            Some(key) => self.is_withheld(stream, key).await?,
            None => false,
        };
        if event.state == RowState::Waiting && !is_withheld && self.is_head(&event.row, stream).await? {
            self.arrive(event.entry(), stream).await?;
        }
        Ok(())
    }

    async fn withhold(&mut self, _: &Arc<Stream>, _: &str) -> Step<()> {
        Ok(())
    }

    async fn hand_out(&mut self, stream: &Arc<Stream>, key: &str) -> Step<()> {
        Self::go_on(self, stream, key, Seq(0)).await.map(drop)
    }
}
