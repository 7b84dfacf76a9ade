//! Leases: attempts that are made by somebody outside the engine, told apart by their attempt and token.

use std::collections::VecDeque;
use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::entry::{Change, Entry, StreamId};
use rusqlite::{CachedStatement, OptionalExtension, Params, Row, params};

use super::desk::Desk;
use super::faults::{Fault, Step, broken};
use super::find::found;
use super::held::{Held, Mark, Stand, held_columns};
use super::names::find_stream;
use super::numbers::{from_moment, span, to_moment};
use super::receipt::Receipt;
use super::rows::{Damage, EventRow, Stream, event_columns};
use crate::lease::{self, Lapsed, Lease, LeaseSettle, LeaseSettled, Leased, Term, TokenHash};
use crate::store::QueueSpec;
use crate::stores::shared::acts::disagreement;

/// How many leases that are over are dealt with in one call, so that it stays short.
const LAPSED_MAX: u32 = 1000;

/// That an event was not put back out of order while somebody has a later one of its key; it waits for the end of
/// that lease.
macro_rules! not_met {
    () => {
        "(out_of_order = 0 OR NOT EXISTS (SELECT 1 FROM redrive_held other WHERE other.key = held.key \
         AND other.state = 6 AND other.stream = held.stream))"
    };
}

impl Desk {
    /// Hands out what is due to somebody outside.
    pub(super) fn lease(&mut self, call: &mut Lease) -> Step<Leased> {
        // Leases of a queue that is not pulled from any more lapse all the same: nobody else would look after them.
        let may = |queue: &QueueSpec| queue.pull || call.tokens.is_empty();
        if !self.spec(&call.queue)?.is_some_and(|queue| may(&queue)) {
            let what =
                format!("the queue `{}` is not one that is pulled from; declare it with `pull`", call.queue);
            return Err(broken(what).into());
        }
        self.see(call.at);
        let streams = self.streams_for(call)?;
        let lapsed = self.lapse(&streams, call)?;
        self.let_overdue_go(&streams, call.at)?;
        let entries = self.lease_due(&streams, call)?;
        Ok(Leased { entries, lapsed, next_due: self.next_for(&streams, call.at)? })
    }

    /// The streams that a call is for: all of its queue, or the one of its tenant.
    fn streams_for(&mut self, call: &Lease) -> Step<Vec<Arc<Stream>>> {
        let Some(tenant) = &call.tenant else { return self.streams_of(&call.queue) };
        let Some(id) = find_stream(&self.conn, &call.queue, tenant)? else { return Ok(Vec::new()) };
        Ok(self.names.of(&self.conn, id)?.into_iter().collect())
    }

    /// The streams of a queue: the one after the one that was served last comes first.
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

    /// Deals with leases that are over: each is an attempt of unknown outcome.
    fn lapse(&mut self, streams: &[Arc<Stream>], call: &mut Lease) -> Step<usize> {
        let mut lapsed = 0;
        for stream in streams {
            let over: Vec<Held> = {
                let mut select = self.conn.prepare_cached(concat!(
                    "SELECT ",
                    held_columns!(),
                    " FROM redrive_held WHERE state = 6 AND stream = ?1 AND lease_until <= ?2 ORDER BY lease_until"
                ))?;
                let mut rows = select.query(params![stream.id.0, from_moment(call.at)])?;
                let mut over = Vec::new();
                while let Some(row) = rows.next()?
                    && lapsed + over.len() < LAPSED_MAX as usize
                {
                    over.extend(Held::read(row, stream).ok());
                }
                over
            };
            lapsed += over.len();
            for held in over {
                let term = held.lease.map_or(
                    Term { from: call.at, until: call.at },
                    |Mark { from, until, .. }| Term { from, until },
                );
                let change = (call.lapsed)(&held.clone().entry(), term);
                if let Change::Dead { reason, progress, park } = change {
                    let (rev, reason, died) = (held.rev + 1, Some(reason), Some(call.at));
                    self.bury_lapsed(Held { rev, reason, died, progress, ..held }, false, park, stream)?;
                } else {
                    self.apply((held, false), &change, call.at, stream)?;
                }
            }
        }
        Ok(lapsed)
    }

    /// Ends the hold of dead letters whose time is over: of a queue that is pulled from, nobody else may look.
    fn let_overdue_go(&mut self, streams: &[Arc<Stream>], at: Moment) -> Step<()> {
        for stream in streams {
            let over: Vec<Held> = {
                let mut select = self.conn.prepare_cached(concat!(
                    "SELECT ",
                    held_columns!(),
                    " FROM redrive_held WHERE state = 2 AND stream = ?1 AND park_until <= ?2 LIMIT ?3"
                ))?;
                let params = params![stream.id.0, from_moment(at), LAPSED_MAX];
                let over = select.query_map(params, |row| Ok(Held::read(row, stream).ok()))?;
                over.filter_map(Result::transpose).collect::<rusqlite::Result<_>>()?
            };
            for dead in over {
                self.let_go(stream, dead)?;
            }
        }
        Ok(())
    }

    /// Leases what is due, a turn for each stream.
    fn lease_due(&mut self, streams: &[Arc<Stream>], call: &Lease) -> Step<Vec<Entry>> {
        let mut turns: VecDeque<&Arc<Stream>> = streams.iter().collect();
        let (mut entries, mut bytes, mut tokens) = (Vec::new(), 0, call.tokens.iter());
        while bytes <= call.bytes_max
            && tokens.len() > 0
            && let Some(stream) = turns.pop_front()
        {
            let Some((held, was_live)) = self.next_due_of(stream, call.at)? else { continue };
            turns.push_back(stream);
            let expires = held.row.event.expires.map(|expiry| expiry.moment(held.row.published));
            if expires.is_some_and(|expires| expires <= call.at) {
                let (attempts, story) = (held.progress.attempts, held.progress.story.clone());
                self.apply((held, was_live), &Change::Expired { attempts, story }, call.at, stream)?;
            } else if let Some(token) = tokens.next() {
                let entry = self.hand(held, was_live, *token, call)?;
                bytes += entry.event.payload.len();
                entries.push(entry);
                // Whoever asks for one tenant takes nobody else's turn.
                if call.tenant.is_none() {
                    self.served.insert(call.queue.clone(), stream.id);
                }
            }
        }
        Ok(entries)
    }

    fn hand(&mut self, mut held: Held, was_live: bool, token: TokenHash, call: &Lease) -> Step<Entry> {
        held.progress.started.get_or_insert(call.at);
        held.lease =
            Some(Mark { attempt: held.progress.attempts + 1, token, from: call.at, until: call.until });
        held.stand = Stand::Leased;
        held.rev += 1;
        self.keep(&held, was_live)?;
        Ok(held.entry())
    }

    /// What is to be leased next of a stream, as far as rules let it: what has been due for longest, whether it ran
    /// before or not. Otherwise nothing would be tried again while new work comes faster than it is done.
    fn next_due_of(&mut self, stream: &Stream, at: Moment) -> Step<Option<(Held, bool)>> {
        let (first, last) = span(stream.id);
        let rules = Arc::clone(self.rules()?);
        let is_closed = |has_run| rules.controls.is_closed(&stream.queue, &stream.tenant, has_run, at);
        let mut due = Vec::new();
        if !is_closed(false) {
            let mut select = self.conn.prepare_cached(concat!(
                "SELECT ",
                event_columns!(),
                " FROM redrive_live WHERE seq BETWEEN ?1 AND ?2 ORDER BY seq"
            ))?;
            let live = first_good(&mut select, [first, last], |row| EventRow::read(row, stream))?;
            due.extend(live.map(|row| (Held::fresh(row, Stand::Waits), true)));
        }
        for has_run in [false, true] {
            if !is_closed(has_run) {
                due.extend(self.next_held(stream, has_run, at)?.map(|held| (held, false)));
            }
        }
        Ok(due.into_iter().min_by_key(|(held, _)| (held.progress.due, held.row.seq)))
    }

    /// What waited and is due. One that was put back out of order waits on while somebody has a later one of its key.
    fn next_held(&self, stream: &Stream, has_run: bool, at: Moment) -> Step<Option<Held>> {
        let mut select = self.conn.prepare_cached(concat!(
            "SELECT ",
            held_columns!(),
            " FROM redrive_held held WHERE state = 0 AND stream = ?1 AND flow = ?2 AND due <= ?3 AND ",
            not_met!(),
            " ORDER BY due, seq"
        ))?;
        let params = params![stream.id.0, has_run, from_moment(at)];
        first_good(&mut select, params, |row| Held::read(row, stream))
    }

    /// When there may be something next: an event is due, a lease is over, a key goes on.
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
                let live =
                    "SELECT published FROM redrive_live WHERE seq BETWEEN ?1 AND ?2 ORDER BY seq LIMIT 1";
                find(live, &[first, last])?;
            }
            for has_run in [false, true] {
                if !closed(has_run) {
                    let due = concat!(
                        "SELECT due FROM redrive_held held WHERE state = 0 AND stream = ?1 AND flow = ?2 AND ",
                        not_met!(),
                        " ORDER BY due LIMIT 1"
                    );
                    find(due, &[id, i64::from(has_run)])?;
                }
            }
            find("SELECT min(lease_until) FROM redrive_held WHERE state = 6 AND stream = ?1", &[id])?;
            find(
                "SELECT min(park_until) FROM redrive_held WHERE state = 2 AND stream = ?1 AND park_until > 0",
                &[id],
            )?;
        }
        Ok(next.map(to_moment))
    }

    /// Makes leases good for longer.
    pub(super) fn extend(
        &mut self,
        leases: &[lease::Held],
        at: Moment,
        until: Moment,
    ) -> Step<Vec<LeaseSettled>> {
        self.see(at);
        let mut said = Vec::with_capacity(leases.len());
        for lease in leases {
            let held = match self.leased(lease)? {
                Some((held, _)) if held.stand == Stand::Leased => held,
                there => {
                    said.push(match (self.disagree(lease)?, there) {
                        (LeaseSettled::Conflict(found), Some(_)) => LeaseSettled::Lapsed(found),
                        (other, _) => other,
                    });
                    continue;
                }
            };
            let mark = held.lease.map(|mark| Mark { until, ..mark });
            Held { lease: mark, ..held }.update(&self.conn)?;
            said.push(LeaseSettled::Applied);
        }
        Ok(said)
    }

    /// Writes what became of leased events.
    pub(super) fn settle_leased(&mut self, settles: &mut [LeaseSettle]) -> Step<Vec<LeaseSettled>> {
        settles.iter_mut().map(|settle| self.settle_lease(settle)).collect()
    }

    fn settle_lease(&mut self, settle: &mut LeaseSettle) -> Step<LeaseSettled> {
        let LeaseSettle { lease, at, decide } = settle;
        self.see(*at);
        let Some((mut held, stream)) = self.leased(lease)? else { return self.disagree(lease) };
        // Where the lease was over, that was written down as an attempt; now there is more to say of it.
        held.progress = held.progress.before(lease.attempt);
        let lapsed = held.lapsed();
        let change = decide(&held.clone().entry(), lapsed);
        let change = match Lapsed::bounded(lapsed, change) {
            Change::Done => {
                let story = held.progress.story.clone();
                Change::DoneWith { result: None, attempts: lease.attempt, story }
            }
            change => change,
        };
        self.apply((held, false), &change, *at, &stream)?;
        Ok(LeaseSettled::Applied)
    }

    /// The event that a lease is for, if it lives or is dead by the end of that lease, and no attempt was made since.
    fn leased(&mut self, lease: &lease::Held) -> Step<Option<(Held, Arc<Stream>)>> {
        let Some(id) = find_stream(&self.conn, &lease.queue, &lease.tenant)? else { return Ok(None) };
        let Some(stream) = self.names.of(&self.conn, id)? else { return Ok(None) };
        let there = match Receipt::find(&self.conn, id, &lease.id) {
            Ok(Some(receipt)) => self.row_of(&receipt, &stream),
            Ok(None) => return Ok(None),
            Err(fault) => Err(fault),
        };
        let there = match there {
            Ok(there) => there,
            // Of what is damaged nobody knows who has it.
            Err(Fault::Refused(_)) => return Ok(None),
            Err(fault) => return Err(fault),
        };
        let held = there.map(|(held, _)| held).filter(|held| held.is_leased_last(lease));
        Ok(held.map(|held| (held, stream)))
    }

    /// What is said of a lease that is not the last one.
    fn disagree(&mut self, lease: &lease::Held) -> Step<LeaseSettled> {
        let Some(stream) = find_stream(&self.conn, &lease.queue, &lease.tenant)? else {
            return Ok(LeaseSettled::Unknown);
        };
        let view = self.view()?;
        let known = match Receipt::find(&self.conn, stream, &lease.id) {
            Ok(Some(receipt)) => {
                let by = receipt.end.as_ref().and_then(|end| end.token);
                found(&self.conn, &mut self.names, receipt, &view).map(|found| (found, by))
            }
            Ok(None) => return Ok(LeaseSettled::Unknown),
            Err(fault) => Err(fault),
        };
        match known {
            Ok((found, by)) => Ok(disagreement(found, by, lease)),
            Err(Fault::Refused(_)) => Ok(LeaseSettled::Unknown),
            Err(fault) => Err(fault),
        }
    }
}

/// The first row that can be read.
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
