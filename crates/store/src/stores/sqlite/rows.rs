//! The writer's transaction under the [row engine](crate::stores::rows). Nothing here waits: the engine's functions are
//! polled once, on the writer thread.

use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::event::{Event, Fingerprint, State};
use redrive_core::ledger::{RequestScope, Resolution};
use redrive_core::queue_entry::{ParkFollowers, QueueEntry, Seq, StreamId};
use redrive_core::triage::{ActiveRule, CauseId, Filter, Job, JobId, Operator, RedriveOptions, Rule};

use super::events::dedupe::DedupeRecord;
use super::events::fresh::{Damage, EventRow, Stream, find_fresh};
use super::events::stream_names::find_stream;
use super::events::tracked::{RedrivenBy, RowState, TrackedEvent, delete_tracked};
use super::faults::{Step, broken, damaged};
use super::operate::letters::how_many;
use super::read::find::place;
use super::writer::tx::{Target, WriterTx};
use crate::operate::{AuditEntry, JobAdvance, Refusal};
use crate::store::{DeadLetterRetention, QueueSpec};
use crate::stores::rows::advance::{Candidate, Candidates};
use crate::stores::rows::contract::{EventRows, KeyOrder, OperatorRows};
use crate::stores::rows::retention::DeadRef;
use crate::stores::shared::columns::Columns;
use crate::stores::shared::group::RedriveOutcome;
use crate::stores::shared::numbers::seq;
use crate::stores::shared::rules::Rules;

impl WriterTx {
    fn declared(&mut self, queue: &str, tenant: &str) -> Step<Target> {
        self.target(queue, tenant)?
            .ok_or_else(|| broken(format!("the queue `{queue}` is not declared")).into())
    }
}

impl EventRows for WriterTx {
    type Error = rusqlite::Error;

    fn recall(&mut self) -> &mut bool {
        &mut self.recall
    }

    fn advance_clock(&mut self, at: Moment) {
        Self::advance_clock(self, at);
    }

    fn shard_of(&self, _: &Event) -> u32 {
        0
    }

    async fn spec(&mut self, queue: &str) -> Step<Option<Arc<QueueSpec>>> {
        Ok(Self::spec(self, queue)?)
    }

    async fn find_stream(&mut self, queue: &str, tenant: &str) -> Step<Option<Arc<Stream>>> {
        let Some(id) = find_stream(&self.conn, queue, tenant)? else { return Ok(None) };
        Ok(self.names.of(&self.conn, id)?)
    }

    async fn stream(&mut self, id: StreamId) -> Step<Option<Arc<Stream>>> {
        Ok(self.names.of(&self.conn, id)?)
    }

    async fn streams_of(&mut self, queue: &str) -> Step<Vec<StreamId>> {
        let mut select = self.conn.prepare_cached("SELECT id FROM redrive_stream WHERE queue = ?1")?;
        let streams = select.query_map([queue], |row| row.get(0).map(StreamId))?;
        Ok(streams.collect::<rusqlite::Result<_>>()?)
    }

    async fn open_stream(&mut self, queue: &str, tenant: &str) -> Step<Arc<Stream>> {
        Ok(self.declared(queue, tenant)?.stream)
    }

    async fn new_seq(&mut self, stream: &Stream) -> Step<Seq> {
        let target = self.declared(&stream.queue, &stream.tenant)?;
        self.used(&target, 1);
        Ok(seq(stream.id, target.next))
    }

    async fn dedupe_record(&mut self, stream: StreamId, id: &str) -> Step<Option<DedupeRecord>> {
        DedupeRecord::find(&self.conn, stream, id)
    }

    async fn insert_dedupe_record(
        &mut self,
        identity: (StreamId, &str),
        fingerprint: Fingerprint,
        seq: Seq,
        times: (Moment, Moment),
    ) -> Step<bool> {
        let mut insert = DedupeRecord::inserting(&self.conn)?;
        Ok(DedupeRecord::insert(&mut insert, identity, fingerprint, seq, times)?)
    }

    async fn update_dedupe_record(&mut self, record: &DedupeRecord) -> Step<()> {
        Ok(record.update(&self.conn)?)
    }

    async fn delete_dedupe_record(&mut self, record: &DedupeRecord) -> Step<()> {
        Ok(DedupeRecord::delete(&self.conn, record.stream, &record.id)?)
    }

    async fn is_over(&mut self, record: &DedupeRecord) -> Step<bool> {
        Ok(Self::is_over(self, record)?)
    }

    async fn fresh_row(&mut self, seq: Seq, stream: &Stream) -> Step<Option<EventRow>> {
        let found = find_fresh(&self.conn, seq, stream)?.transpose();
        found.map_err(|Damage| damaged("redrive_fresh", seq.0).into())
    }

    async fn tracked_row(&mut self, seq: Seq, stream: &Stream) -> Step<Option<TrackedEvent>> {
        let found = TrackedEvent::find(&self.conn, seq, stream)?.transpose();
        found.map_err(|Damage| damaged("redrive_tracked", seq.0).into())
    }

    async fn insert_tracked(&mut self, event: &TrackedEvent) -> Step<()> {
        Ok(event.insert(&self.conn)?)
    }

    async fn delete_tracked(&mut self, seq: Seq) -> Step<()> {
        Ok(delete_tracked(&self.conn, seq).map(drop)?)
    }

    async fn write_tracked(&mut self, event: &TrackedEvent, was_fresh: bool) -> Step<()> {
        Ok(self.keep(event, was_fresh)?)
    }

    async fn write_columns(&mut self, seq: Seq, columns: &Columns) -> Step<()> {
        Ok(columns.update(&self.conn, seq)?)
    }

    async fn uncount_death(
        &mut self,
        stream: StreamId,
        cause: Option<CauseId>,
        was_holding: bool,
    ) -> Step<()> {
        Ok(Self::uncount_death(self, stream, cause, was_holding)?)
    }

    async fn count_redrive(
        &mut self,
        stream: StreamId,
        cause: Option<CauseId>,
        by: RedrivenBy,
        at: Moment,
    ) -> Step<()> {
        Ok(Self::count_redrive(self, stream, cause, by, at)?)
    }

    async fn charge(&mut self, by: Option<RedrivenBy>, outcome: RedriveOutcome) -> Step<()> {
        Ok(Self::charge(self, by, outcome)?)
    }
}

impl OperatorRows for WriterTx {
    async fn lock_shards(&mut self) -> Step<()> {
        Ok(())
    }

    async fn check_room(&mut self) -> Step<()> {
        Ok(self.disk.check()?)
    }

    async fn next_audit_number(&mut self) -> Step<u64> {
        Ok(self.next_line()?)
    }

    async fn write_audit_line(
        &mut self,
        number: u64,
        by: &Operator,
        at: Moment,
        deed: &AuditEntry,
    ) -> Step<()> {
        Ok(self.write_line(number, by, at, deed)?)
    }

    async fn raise_version(&mut self) -> Step<()> {
        let mut update = self.conn.prepare_cached("UPDATE redrive_meta SET orders = orders + 1")?;
        Ok(update.execute([]).map(drop)?)
    }

    async fn resolve(
        &mut self,
        scope: &RequestScope,
        to: &Resolution,
        at: Moment,
    ) -> Step<Result<(), Refusal>> {
        Self::resolve(self, scope, to, at)
    }

    async fn rules(&mut self) -> Step<Arc<Rules>> {
        Ok(Arc::clone(Self::rules(self)?))
    }

    fn forget_rules(&mut self) {
        self.rules = None;
    }

    async fn insert_rule(&mut self, control: &ActiveRule) -> Step<()> {
        Ok(Self::insert_rule(self, control)?)
    }

    async fn delete_rule(&mut self, rule: &Rule) -> Step<bool> {
        Ok(Self::delete_rule(self, rule)?)
    }

    async fn job(&mut self, id: JobId) -> Step<Option<Job>> {
        Ok(Self::job(self, id)?.cloned())
    }

    async fn write_job(&mut self, job: &Job) -> Step<()> {
        self.put_job(job.clone());
        Ok(())
    }

    async fn next_job_id(&mut self) -> Step<JobId> {
        self.write_numbers()?;
        Ok(Self::next_job_id(self)?)
    }

    async fn count_letters(&mut self, filter: &Filter) -> Step<u64> {
        self.write_numbers()?;
        how_many(&self.conn, &mut self.names, filter)
    }

    async fn deaths(&mut self) -> Step<u64> {
        Ok(Self::deaths(self)?)
    }

    async fn flush_tallies(&mut self) -> Step<()> {
        Ok(self.write_numbers()?)
    }

    async fn candidates(&mut self, job: &Job, most: usize) -> Step<Candidates> {
        Self::candidates(self, job, most)
    }

    async fn redrive_plain(
        &mut self,
        letters: Vec<Candidate>,
        redrive: &RedriveOptions,
        job: JobId,
        step: &JobAdvance,
        announce: bool,
    ) -> Step<()> {
        Self::redrive_plain(self, letters, redrive, job, step, announce)
    }

    async fn queues_with_retention(&mut self) -> Step<Vec<(String, DeadLetterRetention)>> {
        Ok(Self::queues_with_retention(self)?)
    }

    async fn passed_letters(&mut self, queue: &str) -> Step<u64> {
        self.write_numbers()?;
        Ok(Self::passed_letters(self, queue)?)
    }

    async fn next_dead(&mut self, stream: StreamId, after: DeadRef) -> Step<Option<DeadRef>> {
        Ok(Self::next_dead(self, stream, after)?)
    }
}

impl KeyOrder for WriterTx {
    async fn state_of(&mut self, event: &TrackedEvent, stream: &Stream) -> Step<State> {
        let view = self.view()?;
        Ok(place(&self.conn, event, stream, &view)?)
    }

    async fn revive(&mut self, event: TrackedEvent, was_fresh: bool, stream: &Arc<Stream>) -> Step<()> {
        Self::revive(self, event, was_fresh, stream)
    }

    async fn bury(
        &mut self,
        event: TrackedEvent,
        was_fresh: bool,
        park: ParkFollowers,
        stream: &Arc<Stream>,
    ) -> Step<Option<QueueEntry>> {
        Self::bury(self, event, was_fresh, park, stream)
    }

    async fn go_on(&mut self, stream: &Arc<Stream>, key: &str, _: Seq) -> Step<Option<QueueEntry>> {
        Self::go_on(self, stream, key)
    }

    async fn parking_head(&mut self, stream: &Stream, key: &str) -> Step<Option<TrackedEvent>> {
        Self::parking_head(self, stream, key)
    }

    async fn parked_letters(&mut self, stream: &Stream, key: &str) -> Step<Vec<TrackedEvent>> {
        Ok(Self::parked_letters(self, stream, key)?)
    }

    async fn unblock(&mut self, stream: &Arc<Stream>, dead: TrackedEvent) -> Step<Option<QueueEntry>> {
        self.let_go(stream, dead)
    }

    async fn announce_if_head(&mut self, event: TrackedEvent, stream: &Arc<Stream>) -> Step<()> {
        if event.state == RowState::Waiting {
            self.arrive(event.entry(), stream)?;
        }
        Ok(())
    }

    async fn withhold(&mut self, stream: &Arc<Stream>, key: &str) -> Step<()> {
        self.push_back(stream, key, None, RowState::Withheld).map(drop)
    }

    async fn hand_out(&mut self, stream: &Arc<Stream>, key: &str) -> Step<()> {
        Self::hand_out(self, stream, key)
    }
}
