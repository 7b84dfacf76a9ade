//! Leases: attempts of workers outside the engine, identified by attempt and token.

use std::collections::{BTreeSet, VecDeque};

use redrive_core::Moment;
use redrive_core::event::State as Where;
use redrive_core::planted::{PlantedBug, has};
use redrive_core::queue_entry::{EventChange, QueueEntry, Seq, StreamId};

use super::row::{Hand, Identity, Row};
use super::state::State;
use crate::error::StoreError;
use crate::lease::{
    DeadByExpiry, DecideExpiry, LeasePeriod, LeaseRef, LeaseRequest, LeaseSettle, LeaseSettleResult,
    LeasedEvents, TokenHash,
};

/// How many expired leases one call handles, so that it stays short.
const LAPSED_MAX: usize = 1000;

impl State {
    /// Leases due events to a worker.
    pub(super) fn lease(&mut self, call: LeaseRequest) -> Result<LeasedEvents, StoreError> {
        let LeaseRequest { queue, tenant, at, until, tokens, bytes_max, mut lapsed } = call;
        // Leases of a queue that is no longer pulled from still lapse: no other call handles them.
        if !self.queues.get(&queue).is_some_and(|queue| queue.pull || tokens.is_empty()) {
            let what = format!("workers cannot pull from the queue `{queue}`; declare it with `pull`");
            return Err(StoreError::Broken { what, source: None });
        }
        self.see(at);
        let streams = self.streams_of(&queue, tenant.as_deref());
        let lapsed = self.lapse(&streams, at, &mut lapsed);
        self.let_overdue_go(&streams, at);
        let entries = self.hand_out(&streams, at, until, &tokens, bytes_max);
        // A call for one tenant takes no other tenant's turn.
        if let (None, Some(last)) = (tenant, entries.last()) {
            self.served.put(queue, last.stream);
        }
        Ok(LeasedEvents { entries, lapsed, next_due: self.next_for(&streams, at) })
    }

    /// The streams of a queue, or of one tenant: the stream after the one that was served last comes first.
    fn streams_of(&self, queue: &str, tenant: Option<&str>) -> Vec<StreamId> {
        let is_for = |whose: &str| tenant.is_none_or(|tenant| tenant == whose);
        let all = self.streams.iter();
        let of_queue = all.filter(|(_, stream)| stream.queue == queue && is_for(&stream.tenant));
        let mut streams: Vec<_> = of_queue.map(|(id, _)| *id).collect();
        let last = self.served.get(&queue.to_owned());
        let next = last.map_or(0, |last| streams.partition_point(|id| id <= last));
        streams.rotate_left(next);
        streams
    }

    /// Lets expired leases lapse: each is an attempt of unknown outcome.
    fn lapse(&mut self, streams: &[StreamId], at: Moment, decide: &mut DecideExpiry) -> usize {
        let out = self.rows.iter().map(|(_, row)| row).filter(|row| streams.contains(&row.entry.stream));
        let over = out.filter(|row| row.lease.as_ref().is_some_and(|lease| lease.out && lease.until <= at));
        let over: Vec<_> = over.take(LAPSED_MAX).cloned().collect();
        let lapsed = over.len();
        for mut row in over {
            let term =
                row.lease.as_ref().map(|Hand { from, until, .. }| LeasePeriod { from: *from, until: *until });
            let change = decide(&row.entry, term.unwrap_or(LeasePeriod { from: at, until: at }));
            take_back(&mut row);
            if let EventChange::Dead { reason, progress, park } = change {
                row.entry.rev += 1;
                row.entry.progress = progress;
                self.bury_lapsed(row, reason, at, park);
            } else {
                self.change(row, at, change);
            }
        }
        lapsed
    }

    /// Ends the block of dead letters whose time is over: no owner loads a queue that is pulled from.
    fn let_overdue_go(&mut self, streams: &[StreamId], at: Moment) {
        let held = self.holding.iter().map(|(hold, ())| hold);
        let over = held.filter(|(stream, _, until, _)| streams.contains(stream) && *until <= at);
        let over: Vec<_> = over.filter_map(|(.., seq)| self.rows.get(seq)).cloned().collect();
        for row in over {
            self.let_go(row);
        }
    }

    fn hand_out(
        &mut self,
        streams: &[StreamId],
        at: Moment,
        until: Moment,
        tokens: &[TokenHash],
        bytes_max: usize,
    ) -> Vec<QueueEntry> {
        let mut turns: VecDeque<_> =
            streams.iter().map(|stream| (*stream, self.due_in(*stream, at))).collect();
        let (mut entries, mut bytes, mut tokens) = (Vec::new(), 0, tokens.iter());
        while bytes <= bytes_max
            && tokens.len() > 0
            && let Some((stream, mut due)) = turns.pop_front()
        {
            let Some(row) = due.pop_front().and_then(|seq| self.rows.get(&seq)).cloned() else { continue };
            turns.push_back((stream, due));
            if row.entry.expires.is_some_and(|expires| expires <= at) {
                let (attempts, history) = (row.entry.progress.attempts, row.entry.progress.history.clone());
                self.change(row, at, EventChange::Expired { attempts, history });
            } else if let Some(token) = tokens.next() {
                let entry = self.hand(row, *token, at, until);
                bytes += entry.event.payload.len();
                entries.push(entry);
            }
        }
        entries
    }

    fn hand(&mut self, mut row: Row, token: TokenHash, at: Moment, until: Moment) -> QueueEntry {
        let progress = &mut row.entry.progress;
        progress.started.get_or_insert(at);
        row.lease = Some(Hand { attempt: progress.attempts + 1, token, from: at, until, out: true });
        row.entry.rev += 1;
        let entry = row.entry.clone();
        self.write(entry.seq, Some(row));
        entry
    }

    /// The due events of a stream that are not held back: longest due first, whether they ran before or not. Otherwise
    /// no event would be retried while new work arrives faster than it is done.
    fn due_in(&self, stream: StreamId, at: Moment) -> VecDeque<Seq> {
        let due = self.open(stream, at).map(|((_, due, seq), ())| (due, seq)).filter(|(due, _)| *due <= at);
        let sorted: BTreeSet<_> = due.collect();
        sorted.into_iter().map(|(_, seq)| seq).filter(|seq| !self.is_met(*seq)).collect()
    }

    /// Whether a worker holds a later event of the key: this one was redriven out of order, or came late.
    fn is_met(&self, seq: Seq) -> bool {
        let chain = self.rows.get(&seq).and_then(|row| row.chain.as_ref());
        chain.is_some_and(|chain| self.members(chain).any(Row::is_out))
    }

    /// The events of a stream that may run, now or later, as far as rules allow: by flow, time and seq.
    fn open(&self, stream: StreamId, at: Moment) -> impl Iterator<Item = ((bool, Moment, Seq), ())> {
        let first = (stream, 0, false, Moment::default(), Seq(0));
        let last = (stream, u32::MAX, true, Moment::FAR, Seq(u64::MAX));
        let (controls, named) = (self.controls(), self.streams.get(&stream));
        let runnable =
            self.runnable.range(first..=last).map(|((_, _, retry, due, seq), ())| (*retry, *due, *seq));
        let open = runnable.filter(move |(retry, ..)| {
            named.is_some_and(|named| !controls.is_closed(&named.queue, &named.tenant, *retry, at))
        });
        open.map(|place| (place, ()))
    }

    /// When there may be more: an event is due, a lease runs out, a key is unblocked.
    fn next_for(&self, streams: &[StreamId], at: Moment) -> Option<Moment> {
        // An event that waits for a later one of its key waits for the end of that lease.
        let open = streams.iter().flat_map(|stream| self.open(*stream, at)).map(|(place, ())| place);
        let due = open.filter(|(.., seq)| !self.is_met(*seq)).map(|(_, due, _)| due);
        let rows = self.rows.iter().map(|(_, row)| row).filter(|row| streams.contains(&row.entry.stream));
        let leases = rows.filter_map(|row| row.lease.as_ref()).filter(|lease| lease.out);
        let held = self.holding.iter().map(|(hold, ())| hold).filter(|(stream, ..)| streams.contains(stream));
        due.chain(leases.map(|lease| lease.until)).chain(held.map(|(_, _, until, _)| *until)).min()
    }

    /// Extends a lease.
    pub(super) fn extend(&mut self, held: &LeaseRef, until: Moment) -> LeaseSettleResult {
        let Some(row) = self.leased(held) else { return self.disagree(held) };
        if !row.is_out() {
            return match self.disagree(held) {
                LeaseSettleResult::Conflict(found) => LeaseSettleResult::Lapsed(found),
                other => other,
            };
        }
        let mut row = row.clone();
        if let Some(lease) = &mut row.lease {
            lease.until = until;
        }
        self.write(row.entry.seq, Some(row));
        LeaseSettleResult::Applied
    }

    /// Settles a leased event.
    pub(super) fn settle_leased(&mut self, settle: LeaseSettle) -> LeaseSettleResult {
        let LeaseSettle { lease: held, at, mut decide } = settle;
        self.see(at);
        let Some(mut row) = self.leased(&held).cloned() else { return self.disagree(&held) };
        // If the lease had run out, that was written as an attempt; now its real outcome replaces it.
        row.entry.progress = row.entry.progress.before(held.attempt);
        let lapsed = row.lapsed();
        let change = decide(&row.entry, lapsed);
        let change = match DeadByExpiry::bounded(lapsed, change) {
            EventChange::Done => {
                let history = row.entry.progress.history.clone();
                EventChange::DoneWith { result: None, attempts: held.attempt, history }
            }
            change => change,
        };
        take_back(&mut row);
        self.change(row, at, change);
        LeaseSettleResult::Applied
    }

    /// The event of a lease, if it lives or died because that lease ran out, and no attempt was made since.
    fn leased(&self, held: &LeaseRef) -> Option<&Row> {
        let dedupe_record = self.dedupe_records.get(&identity(held))?;
        let row = self.row_of(dedupe_record).filter(|row| !row.discarded)?;
        let is_last = |lease: &Hand| {
            let same = lease.attempt == held.attempt && lease.token == held.token;
            same && row.entry.progress.attempts <= held.attempt
        };
        let is_older = |lease: &Hand| has(PlantedBug::LapsedTakesOlder) && lease.attempt >= held.attempt;
        let agrees = match &row.lease {
            Some(lease) if is_last(lease) => true,
            Some(lease) if !row.lives() => is_older(lease),
            _ => row.lives() && has(PlantedBug::LateAckWins),
        };
        agrees.then_some(row)
    }

    /// The answer about a lease that is not the last one. Attempts may be counted anew, and are easy to guess: the
    /// token identifies the worker that settled it.
    fn disagree(&self, held: &LeaseRef) -> LeaseSettleResult {
        let identity = identity(held);
        let Some(found) = self.find(&identity) else { return LeaseSettleResult::Unknown };
        let end = self.dedupe_records.get(&identity).and_then(|dedupe_record| dedupe_record.end.as_ref());
        let is_by = end.is_some_and(|end| end.token == Some(held.token));
        if found.state == Where::Done && found.attempts == held.attempt && is_by {
            return LeaseSettleResult::Already;
        }
        LeaseSettleResult::Conflict(Box::new(found))
    }
}

/// The lease is over. Its worker is still recorded.
fn take_back(row: &mut Row) {
    if let Some(lease) = &mut row.lease {
        lease.out = false;
    }
}

fn identity(LeaseRef { tenant, queue, id, .. }: &LeaseRef) -> Identity {
    Identity { tenant: tenant.clone(), queue: queue.clone(), id: id.clone() }
}
