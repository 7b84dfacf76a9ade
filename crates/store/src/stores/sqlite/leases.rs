//! Leases: attempts of workers outside the engine, identified by attempt and token.

use std::collections::VecDeque;
use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::queue_entry::{EventChange, QueueEntry, StreamId};
use rusqlite::{CachedStatement, OptionalExtension, Params, Row, params};

use super::events::dedupe::DedupeRecord;
use super::events::fresh::{Damage, EventRow, Stream, event_columns};
use super::events::stream_names::find_stream;
use super::events::tracked::{LastLease, RowState, TrackedEvent, tracked_columns};
use super::faults::{Fault, Step, broken};
use super::read::find::found;
use super::writer::tx::WriterTx;
use crate::lease::{
    self, DeadByExpiry, LeasePeriod, LeaseRequest, LeaseSettle, LeaseSettleResult, LeasedEvents, TokenHash,
};
use crate::store::QueueSpec;
use crate::stores::rows::act::event_of;
use crate::stores::rows::now;
use crate::stores::shared::acts::disagreement;
use crate::stores::shared::numbers::{from_moment, span, to_moment};
use crate::stores::shared::tracked::states;

/// How many expired leases one call handles, so that it stays short.
const LAPSED_MAX: u32 = 1000;

/// SQL condition: no worker holds a later event of its key. An event that was redriven out of order waits for the end
/// of that lease.
macro_rules! not_met {
    () => {
        concat!("(out_of_order = 0 OR NOT EXISTS (SELECT 1 FROM redrive_tracked other WHERE other.key = tracked.key \
         AND other.state = ", states!(Leased), " AND other.stream = tracked.stream))")
    };
}

impl WriterTx {
    /// Leases due events to a worker.
    pub(super) fn lease(&mut self, call: &mut LeaseRequest) -> Step<LeasedEvents> {
        // Leases of a queue that is no longer pulled from still lapse: no other call handles them.
        let may = |queue: &QueueSpec| queue.pull || call.tokens.is_empty();
        if !self.spec(&call.queue)?.is_some_and(|queue| may(&queue)) {
            let what = format!("workers cannot pull from the queue `{}`; declare it with `pull`", call.queue);
            return Err(broken(what).into());
        }
        self.advance_clock(call.at);
        let is_sweep = call.tokens.is_empty();
        let streams = if is_sweep { self.streams_to_sweep(call)? } else { self.streams_for(call)? };
        let lapsed = self.lapse(&streams, call)?;
        self.let_overdue_go(&streams, call.at)?;
        if is_sweep {
            return Ok(LeasedEvents { entries: Vec::new(), lapsed, next_due: None });
        }
        let entries = self.lease_due(&streams, call)?;
        Ok(LeasedEvents { entries, lapsed, next_due: self.next_for(&streams, call.at)? })
    }

    /// The streams with a lease or a block that is over. A sweep runs about once a second for each queue, so it must not
    /// cost more with every tenant that the queue has ever seen.
    fn streams_to_sweep(&mut self, call: &LeaseRequest) -> Step<Vec<Arc<Stream>>> {
        let ids: Vec<StreamId> = {
            let mut select = self.conn.prepare_cached(concat!(
                "SELECT DISTINCT stream FROM redrive_tracked WHERE state = ",
                states!(Leased),
                " AND lease_until <= ?1 UNION SELECT DISTINCT stream FROM redrive_tracked WHERE state = ",
                states!(DeadHolding),
                " AND park_until IS NOT NULL AND park_until <= ?1 ORDER BY 1"
            ))?;
            let ids = select.query_map([from_moment(call.at)], |row| row.get(0).map(StreamId))?;
            ids.collect::<rusqlite::Result<_>>()?
        };
        let mut streams = Vec::with_capacity(ids.len());
        for id in ids {
            let stream = self.names.of(&self.conn, id)?;
            let is_meant = |stream: &Arc<Stream>| {
                stream.queue == call.queue
                    && call.tenant.as_ref().is_none_or(|tenant| *tenant == stream.tenant)
            };
            streams.extend(stream.filter(is_meant));
        }
        Ok(streams)
    }

    /// The streams of a call: all of its queue, or the one of its tenant.
    fn streams_for(&mut self, call: &LeaseRequest) -> Step<Vec<Arc<Stream>>> {
        let Some(tenant) = &call.tenant else { return self.streams_of(&call.queue) };
        let Some(id) = find_stream(&self.conn, &call.queue, tenant)? else { return Ok(Vec::new()) };
        Ok(self.names.of(&self.conn, id)?.into_iter().collect())
    }

    /// The streams of a queue, beginning after the one that was served last.
    fn streams_of(&mut self, queue: &str) -> Step<Vec<Arc<Stream>>> {
        let ids: Vec<StreamId> = {
            let mut select =
                self.conn.prepare_cached("SELECT id FROM redrive_stream WHERE queue = ?1 ORDER BY id")?;
            let ids = select.query_map([queue], |row| row.get(0).map(StreamId))?;
            ids.collect::<rusqlite::Result<_>>()?
        };
        let mut streams = Vec::with_capacity(ids.len());
        for id in ids {
            streams.extend(self.names.of(&self.conn, id)?);
        }
        let next = self.served.get(queue).map_or(0, |last| streams.partition_point(|one| one.id <= *last));
        streams.rotate_left(next);
        Ok(streams)
    }

    /// Lets expired leases lapse: each is an attempt of unknown outcome.
    fn lapse(&mut self, streams: &[Arc<Stream>], call: &mut LeaseRequest) -> Step<usize> {
        let mut lapsed = 0;
        for stream in streams {
            let over: Vec<TrackedEvent> = {
                let mut select = self.conn.prepare_cached(concat!(
                    "SELECT ",
                    tracked_columns!(),
                    " FROM redrive_tracked WHERE state = ",
                    states!(Leased),
                    " AND stream = ?1 AND lease_until <= ?2 ORDER BY lease_until"
                ))?;
                let mut rows = select.query(params![stream.id.0, from_moment(call.at)])?;
                let mut over = Vec::new();
                while let Some(row) = rows.next()?
                    && lapsed + over.len() < LAPSED_MAX as usize
                {
                    over.extend(TrackedEvent::read(row, stream).ok());
                }
                over
            };
            lapsed += over.len();
            for tracked in over {
                let term = tracked.lease.map_or(
                    LeasePeriod { from: call.at, until: call.at },
                    |LastLease { from, until, .. }| LeasePeriod { from, until },
                );
                let change = (call.lapsed)(&tracked.clone().entry(), term);
                if let EventChange::Dead { reason, progress, park } = change {
                    let (rev, reason, died) = (tracked.rev + 1, Some(reason), Some(call.at));
                    self.bury_lapsed(
                        TrackedEvent { rev, reason, died, progress, ..tracked },
                        false,
                        park,
                        stream,
                    )?;
                } else {
                    self.apply((tracked, false), &change, call.at, stream)?;
                }
            }
        }
        Ok(lapsed)
    }

    /// Ends the block of dead letters whose time is over: no owner loads a queue that is pulled from.
    fn let_overdue_go(&mut self, streams: &[Arc<Stream>], at: Moment) -> Step<()> {
        for stream in streams {
            let over: Vec<TrackedEvent> = {
                let mut select = self.conn.prepare_cached(concat!(
                    "SELECT ",
                    tracked_columns!(),
                    " FROM redrive_tracked WHERE state = ",
                    states!(DeadHolding),
                    " AND stream = ?1 AND park_until <= ?2 LIMIT ?3"
                ))?;
                let params = params![stream.id.0, from_moment(at), LAPSED_MAX];
                let over = select.query_map(params, |row| Ok(TrackedEvent::read(row, stream).ok()))?;
                over.filter_map(Result::transpose).collect::<rusqlite::Result<_>>()?
            };
            for dead in over {
                self.let_go(stream, dead)?;
            }
        }
        Ok(())
    }

    /// Leases due events, from each stream in turn.
    fn lease_due(&mut self, streams: &[Arc<Stream>], call: &LeaseRequest) -> Step<Vec<QueueEntry>> {
        let mut turns: VecDeque<&Arc<Stream>> = streams.iter().collect();
        let (mut entries, mut bytes, mut tokens) = (Vec::new(), 0, call.tokens.iter());
        while bytes <= call.bytes_max
            && tokens.len() > 0
            && let Some(stream) = turns.pop_front()
        {
            let Some((tracked, was_fresh)) = self.next_due_of(stream, call.at)? else { continue };
            turns.push_back(stream);
            let expires = tracked.row.event.expires.map(|expiry| expiry.moment(tracked.row.published));
            if expires.is_some_and(|expires| expires <= call.at) {
                let (attempts, history) = (tracked.progress.attempts, tracked.progress.history.clone());
                self.apply(
                    (tracked, was_fresh),
                    &EventChange::Expired { attempts, history },
                    call.at,
                    stream,
                )?;
            } else if let Some(token) = tokens.next() {
                let entry = self.hand(tracked, was_fresh, *token, call)?;
                bytes += entry.event.payload.len();
                entries.push(entry);
                // A call for one tenant takes no other tenant's turn.
                if call.tenant.is_none() {
                    self.served.insert(call.queue.clone(), stream.id);
                }
            }
        }
        Ok(entries)
    }

    fn hand(
        &mut self,
        mut tracked: TrackedEvent,
        was_fresh: bool,
        token: TokenHash,
        call: &LeaseRequest,
    ) -> Step<QueueEntry> {
        tracked.progress.started.get_or_insert(call.at);
        tracked.lease = Some(LastLease {
            attempt: tracked.progress.attempts + 1,
            token,
            from: call.at,
            until: call.until,
        });
        tracked.state = RowState::Leased;
        tracked.rev += 1;
        self.keep(&tracked, was_fresh)?;
        Ok(tracked.entry())
    }

    /// The next event of a stream to lease, as far as rules allow: longest due first, whether it ran before or not.
    /// Otherwise no event would be retried while new work arrives faster than it is done.
    fn next_due_of(&mut self, stream: &Stream, at: Moment) -> Step<Option<(TrackedEvent, bool)>> {
        let (first, last) = span(stream.id);
        let rules = Arc::clone(self.rules()?);
        let is_closed = |has_run| rules.controls.is_closed(&stream.queue, &stream.tenant, has_run, at);
        let mut due = Vec::new();
        if !is_closed(false) {
            let mut select = self.conn.prepare_cached(concat!(
                "SELECT ",
                event_columns!(),
                " FROM redrive_fresh WHERE seq BETWEEN ?1 AND ?2 ORDER BY seq"
            ))?;
            let fresh = first_good(&mut select, [first, last], |row| EventRow::read(row, stream))?;
            due.extend(fresh.map(|row| (TrackedEvent::fresh(row, RowState::Waiting), true)));
        }
        for has_run in [false, true] {
            if !is_closed(has_run) {
                due.extend(self.next_tracked(stream, has_run, at)?.map(|tracked| (tracked, false)));
            }
        }
        Ok(due.into_iter().min_by_key(|(tracked, _)| (tracked.progress.due, tracked.row.seq)))
    }

    /// Events that waited and are due. An event that was redriven out of order waits while a worker holds a later
    /// event of its key.
    fn next_tracked(&self, stream: &Stream, has_run: bool, at: Moment) -> Step<Option<TrackedEvent>> {
        let mut select = self.conn.prepare_cached(concat!(
            "SELECT ",
            tracked_columns!(),
            " FROM redrive_tracked tracked WHERE state = ",
            states!(Waiting),
            " AND stream = ?1 AND flow = ?2 AND due <= ?3 AND ",
            not_met!(),
            " ORDER BY due, seq"
        ))?;
        let params = params![stream.id.0, has_run, from_moment(at)];
        first_good(&mut select, params, |row| TrackedEvent::read(row, stream))
    }

    /// When there may be more: an event is due, a lease runs out, a key is unblocked.
    fn next_for(&mut self, streams: &[Arc<Stream>], at: Moment) -> Step<Option<Moment>> {
        let rules = Arc::clone(self.rules()?);
        let mut next: Option<i64> = None;
        for stream in streams {
            let (first, last) = span(stream.id);
            let closed = |has_run| rules.controls.is_closed(&stream.queue, &stream.tenant, has_run, at);
            let mut find = |sql: &str, params: &[i64]| -> rusqlite::Result<()> {
                let mut select = self.conn.prepare_cached(sql)?;
                let found = select.query_row(rusqlite::params_from_iter(params), |row| row.get(0));
                let found: Option<i64> = found.optional()?.flatten();
                next = [next, found].into_iter().flatten().min();
                Ok(())
            };
            let id = i64::from(stream.id.0);
            if !closed(false) {
                let fresh =
                    "SELECT published FROM redrive_fresh WHERE seq BETWEEN ?1 AND ?2 ORDER BY seq LIMIT 1";
                find(fresh, &[first, last])?;
            }
            for has_run in [false, true] {
                if !closed(has_run) {
                    let due = concat!(
                        "SELECT due FROM redrive_tracked tracked WHERE state = ",
                        states!(Waiting),
                        " AND stream = ?1 AND flow = ?2 AND ",
                        not_met!(),
                        " ORDER BY due LIMIT 1"
                    );
                    find(due, &[id, i64::from(has_run)])?;
                }
            }
            find(
                concat!(
                    "SELECT min(lease_until) FROM redrive_tracked WHERE state = ",
                    states!(Leased),
                    " AND stream = ?1"
                ),
                &[id],
            )?;
            find(
                concat!(
                    "SELECT min(park_until) FROM redrive_tracked WHERE state = ",
                    states!(DeadHolding),
                    " AND stream = ?1 AND park_until > 0"
                ),
                &[id],
            )?;
        }
        Ok(next.map(to_moment))
    }

    /// Extends leases to `until`.
    pub(super) fn extend(
        &mut self,
        leases: &[lease::LeaseRef],
        at: Moment,
        until: Moment,
    ) -> Step<Vec<LeaseSettleResult>> {
        self.advance_clock(at);
        let mut said = Vec::with_capacity(leases.len());
        for lease in leases {
            let tracked = match self.leased(lease)? {
                Some((tracked, _)) if tracked.state == RowState::Leased => tracked,
                there => {
                    said.push(match (self.disagree(lease)?, there) {
                        (LeaseSettleResult::Conflict(found), Some(_)) => LeaseSettleResult::Lapsed(found),
                        (other, _) => other,
                    });
                    continue;
                }
            };
            let mark = tracked.lease.map(|mark| LastLease { until, ..mark });
            TrackedEvent { lease: mark, ..tracked }.update(&self.conn)?;
            said.push(LeaseSettleResult::Applied);
        }
        Ok(said)
    }

    /// Settles leased events.
    pub(super) fn settle_leased(&mut self, settles: &mut [LeaseSettle]) -> Step<Vec<LeaseSettleResult>> {
        settles.iter_mut().map(|settle| self.settle_lease(settle)).collect()
    }

    fn settle_lease(&mut self, settle: &mut LeaseSettle) -> Step<LeaseSettleResult> {
        let LeaseSettle { lease, at, decide } = settle;
        self.advance_clock(*at);
        let Some((mut tracked, stream)) = self.leased(lease)? else { return self.disagree(lease) };
        // If the lease had run out, that was written as an attempt; now its real outcome replaces it.
        tracked.progress = tracked.progress.before(lease.attempt);
        let lapsed = tracked.lapsed();
        let change = decide(&tracked.clone().entry(), lapsed);
        let change = match DeadByExpiry::bounded(lapsed, change) {
            EventChange::Done => {
                let history = tracked.progress.history.clone();
                EventChange::DoneWith { result: None, attempts: lease.attempt, history }
            }
            change => change,
        };
        self.apply((tracked, false), &change, *at, &stream)?;
        Ok(LeaseSettleResult::Applied)
    }

    /// The event of a lease, if it lives or died because that lease ran out, and no attempt was made since.
    fn leased(&mut self, lease: &lease::LeaseRef) -> Step<Option<(TrackedEvent, Arc<Stream>)>> {
        let Some(id) = find_stream(&self.conn, &lease.queue, &lease.tenant)? else { return Ok(None) };
        let Some(stream) = self.names.of(&self.conn, id)? else { return Ok(None) };
        let there = match DedupeRecord::find(&self.conn, id, &lease.id) {
            Ok(Some(dedupe)) => now(event_of(self, &dedupe, &stream)),
            Ok(None) => return Ok(None),
            Err(fault) => Err(fault),
        };
        let there = match there {
            Ok(there) => there,
            // A damaged row does not tell which worker holds it.
            Err(Fault::Refused(_)) => return Ok(None),
            Err(fault) => return Err(fault),
        };
        let tracked = there.map(|(tracked, _)| tracked).filter(|tracked| tracked.is_leased_last(lease));
        Ok(tracked.map(|tracked| (tracked, stream)))
    }

    /// The answer about a lease that is not the last one.
    fn disagree(&mut self, lease: &lease::LeaseRef) -> Step<LeaseSettleResult> {
        let Some(stream) = find_stream(&self.conn, &lease.queue, &lease.tenant)? else {
            return Ok(LeaseSettleResult::Unknown);
        };
        let view = self.view()?;
        let known = match DedupeRecord::find(&self.conn, stream, &lease.id) {
            Ok(Some(dedupe)) => {
                let by = dedupe.end.as_ref().and_then(|end| end.token);
                found(&self.conn, &mut self.names, dedupe, &view).map(|found| (found, by))
            }
            Ok(None) => return Ok(LeaseSettleResult::Unknown),
            Err(fault) => Err(fault),
        };
        match known {
            Ok((found, by)) => Ok(disagreement(found, by, lease)),
            Err(Fault::Refused(_)) => Ok(LeaseSettleResult::Unknown),
            Err(fault) => Err(fault),
        }
    }
}

/// The first readable row.
fn first_good<T>(
    select: &mut CachedStatement<'_>,
    params: impl Params,
    read: impl Fn(&Row<'_>) -> Result<T, Damage>,
) -> Step<Option<T>> {
    let mut rows = select.query(params)?;
    while let Some(row) = rows.next()? {
        if let Ok(good) = read(row) {
            return Ok(Some(good));
        }
    }
    Ok(None)
}
