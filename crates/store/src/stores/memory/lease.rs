//! Leases: attempts that are made by somebody outside the engine, told apart by their attempt and token.

use std::collections::{BTreeSet, VecDeque};

use redrive_core::Moment;
use redrive_core::entry::{Change, Entry, Seq, StreamId};
use redrive_core::event::State as Where;
use redrive_core::planted::{Flaw, has};

use super::row::{Hand, Identity, Row};
use super::state::State;
use crate::error::StoreError;
use crate::lease::{Held, Lapse, Lapsed, Lease, LeaseSettle, LeaseSettled, Leased, Term, TokenHash};

/// How many leases that are over are dealt with in one call, so that it stays short.
const LAPSED_MAX: usize = 1000;

impl State {
    /// Hands out what is due to somebody outside.
    pub(super) fn lease(&mut self, call: Lease) -> Result<Leased, StoreError> {
        let Lease { queue, tenant, at, until, tokens, bytes_max, mut lapsed } = call;
        // Leases of a queue that is not pulled from any more lapse all the same: nobody else would look after them.
        if !self.queues.get(&queue).is_some_and(|queue| queue.pull || tokens.is_empty()) {
            let what = format!("the queue `{queue}` is not one that is pulled from; declare it with `pull`");
            return Err(StoreError::Broken { what, source: None });
        }
        self.see(at);
        let streams = self.streams_of(&queue, tenant.as_deref());
        let lapsed = self.lapse(&streams, at, &mut lapsed);
        self.let_overdue_go(&streams, at);
        let entries = self.hand_out(&streams, at, until, &tokens, bytes_max);
        // Whoever asks for one tenant takes nobody else's turn.
        if let (None, Some(last)) = (tenant, entries.last()) {
            self.served.put(queue, last.stream);
        }
        Ok(Leased { entries, lapsed, next_due: self.next_for(&streams, at) })
    }

    /// The streams of a queue, or the one of a tenant: the one after the one that was served last comes first.
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

    /// Deals with leases that are over: each is an attempt of unknown outcome.
    fn lapse(&mut self, streams: &[StreamId], at: Moment, decide: &mut Lapse) -> usize {
        let out = self.rows.iter().map(|(_, row)| row).filter(|row| streams.contains(&row.entry.stream));
        let over = out.filter(|row| row.lease.as_ref().is_some_and(|lease| lease.out && lease.until <= at));
        let over: Vec<_> = over.take(LAPSED_MAX).cloned().collect();
        let lapsed = over.len();
        for mut row in over {
            let term = row.lease.as_ref().map(|Hand { from, until, .. }| Term { from: *from, until: *until });
            let change = decide(&row.entry, term.unwrap_or(Term { from: at, until: at }));
            take_back(&mut row);
            if let Change::Dead { reason, progress, park } = change {
                row.entry.rev += 1;
                row.entry.progress = progress;
                self.bury_lapsed(row, reason, at, park);
            } else {
                self.change(row, at, change);
            }
        }
        lapsed
    }

    /// Ends the hold of dead letters whose time is over: of a queue that is pulled from, nobody else looks.
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
    ) -> Vec<Entry> {
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
                let (attempts, story) = (row.entry.progress.attempts, row.entry.progress.story.clone());
                self.change(row, at, Change::Expired { attempts, story });
            } else if let Some(token) = tokens.next() {
                let entry = self.hand(row, *token, at, until);
                bytes += entry.event.payload.len();
                entries.push(entry);
            }
        }
        entries
    }

    fn hand(&mut self, mut row: Row, token: TokenHash, at: Moment, until: Moment) -> Entry {
        let progress = &mut row.entry.progress;
        progress.started.get_or_insert(at);
        row.lease = Some(Hand { attempt: progress.attempts + 1, token, from: at, until, out: true });
        row.entry.rev += 1;
        let entry = row.entry.clone();
        self.write(entry.seq, Some(row));
        entry
    }

    /// What is due in a stream and not held back: what has been due for longest first, whether it ran before or not.
    /// Otherwise nothing would be tried again while new work comes faster than it is done.
    fn due_in(&self, stream: StreamId, at: Moment) -> VecDeque<Seq> {
        let due = self.open(stream, at).map(|((_, due, seq), ())| (due, seq)).filter(|(due, _)| *due <= at);
        let sorted: BTreeSet<_> = due.collect();
        sorted.into_iter().map(|(_, seq)| seq).filter(|seq| !self.is_met(*seq)).collect()
    }

    /// Whether somebody has a later one of its key: it was put back out of order, or came late.
    fn is_met(&self, seq: Seq) -> bool {
        let chain = self.rows.get(&seq).and_then(|row| row.chain.as_ref());
        chain.is_some_and(|chain| self.members(chain).any(Row::is_out))
    }

    /// What may run in a stream, now or later, as far as rules let it: by flow, time and seq.
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

    /// When there may be something next: an event is due, a lease is over, a key goes on.
    fn next_for(&self, streams: &[StreamId], at: Moment) -> Option<Moment> {
        // One that waits for a later one of its key waits for the end of that lease.
        let open = streams.iter().flat_map(|stream| self.open(*stream, at)).map(|(place, ())| place);
        let due = open.filter(|(.., seq)| !self.is_met(*seq)).map(|(_, due, _)| due);
        let rows = self.rows.iter().map(|(_, row)| row).filter(|row| streams.contains(&row.entry.stream));
        let leases = rows.filter_map(|row| row.lease.as_ref()).filter(|lease| lease.out);
        let held = self.holding.iter().map(|(hold, ())| hold).filter(|(stream, ..)| streams.contains(stream));
        due.chain(leases.map(|lease| lease.until)).chain(held.map(|(_, _, until, _)| *until)).min()
    }

    /// Makes a lease good for longer.
    pub(super) fn extend(&mut self, held: &Held, until: Moment) -> LeaseSettled {
        let Some(row) = self.leased(held) else { return self.disagree(held) };
        if !row.is_out() {
            return match self.disagree(held) {
                LeaseSettled::Conflict(found) => LeaseSettled::Lapsed(found),
                other => other,
            };
        }
        let mut row = row.clone();
        if let Some(lease) = &mut row.lease {
            lease.until = until;
        }
        self.write(row.entry.seq, Some(row));
        LeaseSettled::Applied
    }

    /// Writes what became of a leased event.
    pub(super) fn settle_leased(&mut self, settle: LeaseSettle) -> LeaseSettled {
        let LeaseSettle { lease: held, at, mut decide } = settle;
        self.see(at);
        let Some(mut row) = self.leased(&held).cloned() else { return self.disagree(&held) };
        // Where the lease was over, that was written down as an attempt; now there is more to say of it.
        row.entry.progress = row.entry.progress.before(held.attempt);
        let lapsed = row.lapsed();
        let change = decide(&row.entry, lapsed);
        let change = match Lapsed::bounded(lapsed, change) {
            Change::Done => {
                let story = row.entry.progress.story.clone();
                Change::DoneWith { result: None, attempts: held.attempt, story }
            }
            change => change,
        };
        take_back(&mut row);
        self.change(row, at, change);
        LeaseSettled::Applied
    }

    /// The event that a lease is for, if it lives or is dead by the end of that lease, and no attempt was made since.
    fn leased(&self, held: &Held) -> Option<&Row> {
        let receipt = self.receipts.get(&identity(held))?;
        let row = self.row_of(receipt).filter(|row| !row.discarded)?;
        let is_last = |lease: &Hand| {
            let same = lease.attempt == held.attempt && lease.token == held.token;
            same && row.entry.progress.attempts <= held.attempt
        };
        let is_older = |lease: &Hand| has(Flaw::LapsedTakesOlder) && lease.attempt >= held.attempt;
        let agrees = match &row.lease {
            Some(lease) if is_last(lease) => true,
            Some(lease) if !row.lives() => is_older(lease),
            _ => row.lives() && has(Flaw::LateAckWins),
        };
        agrees.then_some(row)
    }

    /// What is said of a lease that is not the last one. Attempts may begin anew, and are easy to guess: who did it
    /// is known by the token.
    fn disagree(&self, held: &Held) -> LeaseSettled {
        let identity = identity(held);
        let Some(found) = self.find(&identity) else { return LeaseSettled::Unknown };
        let end = self.receipts.get(&identity).and_then(|receipt| receipt.end.as_ref());
        let is_by = end.is_some_and(|end| end.token == Some(held.token));
        if found.state == Where::Done && found.attempts == held.attempt && is_by {
            return LeaseSettled::Already;
        }
        LeaseSettled::Conflict(Box::new(found))
    }
}

/// Nobody works at it any more. Who did is still known.
fn take_back(row: &mut Row) {
    if let Some(lease) = &mut row.lease {
        lease.out = false;
    }
}

fn identity(Held { tenant, queue, id, .. }: &Held) -> Identity {
    Identity { tenant: tenant.clone(), queue: queue.clone(), id: id.clone() }
}
