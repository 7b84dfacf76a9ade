//! The order of keys.

use redrive_core::Moment;
use redrive_core::queue_entry::{Seq, StreamId};

use super::{Check, Fate, Hold, Model, Record};

impl Model {
    /// The earlier event of its key that has not ended, or parks the key as a dead letter.
    pub(in super::super) fn blocker(&self, record: &Record) -> Option<&Record> {
        let before = self.chains[record.chain?].iter().take_while(|seq| **seq < record.seq);
        before.filter_map(|seq| self.events.get(seq)).find(|record| is_in_the_way(record))
    }

    /// A publisher draws a sequence number.
    pub(in super::super) fn draw(&mut self, stream: StreamId, seq: Seq) -> Check {
        self.drawn.insert(seq);
        self.follow(stream, seq)
    }

    /// Sequence numbers of a stream are drawn in order.
    pub(super) fn follow(&mut self, stream: StreamId, seq: Seq) -> Check {
        match self.last_seqs.insert(stream, seq).filter(|last| *last >= seq) {
            Some(last) => {
                Err(format!("a publisher drew the number {seq:?} after the larger number {last:?}"))
            }
            None => Ok(()),
        }
    }

    /// Whether an attempt may be made, here or outside, now or when it is due.
    pub(in super::super) fn is_free(&self, record: &Record) -> bool {
        record.fate == Fate::Pending
            && !record.lease.as_ref().is_some_and(|lease| lease.out)
            && self.blocker(record).is_none()
            && self.withholding(record).is_none()
    }

    /// Whether its owner may run it, now or when it is due.
    pub(in super::super) fn is_runnable(&self, record: &Record) -> bool {
        self.is_free(record) && !self.is_pulled(record)
    }

    /// The first event of a key that has not ended.
    pub(super) fn first(&self, chain: usize) -> Option<Seq> {
        self.chains[chain].iter().copied().find(|seq| is_in_the_way(&self.events[seq]))
    }

    /// Whether an event is parked behind a dead letter for longer than this simulation lasts.
    pub(in super::super) fn is_parked(&self, record: &Record) -> bool {
        record.fate == Fate::Pending
            && self.blocker(record).is_some_and(|blocker| match blocker.fate {
                Fate::Dead { holds: Some(Hold { until, .. }), .. } => until.is_none(),
                _ => self.is_parked(blocker),
            })
    }

    /// Dead letters whose parking time is over.
    pub(in super::super) fn overdue(&self, now: Moment) -> impl Iterator<Item = &Record> {
        self.events.values().filter(move |record| match record.fate {
            Fate::Dead { holds: Some(Hold { until: Some(until), .. }), .. } => until <= now,
            _ => false,
        })
    }

    /// A dead letter unparks its key if more events are parked than it may hold.
    pub(super) fn relieve(&mut self, chain: usize) {
        loop {
            let mut living = self.chains[chain].iter().filter(|seq| is_in_the_way(&self.events[seq]));
            let Some(first) = living.next() else { return };
            let Fate::Dead { holds: Some(Hold { count: Some(count), .. }), .. } = self.events[first].fate
            else {
                return;
            };
            if living.count() <= count as usize {
                return;
            }
            let first = *first;
            if let Some(record) = self.events.get_mut(&first) {
                super::rules::let_go(record);
            }
        }
    }

    /// An effect happened in the domain.
    pub(in super::super) fn effect(&mut self, seq: Seq) -> Check {
        let Some(record) = self.events.get_mut(&seq) else {
            return Err(format!("{seq:?} had an effect, and was never published"));
        };
        record.effects += 1;
        if record.effects > 1 {
            return Err(format!("{seq:?} had its effect {} times", record.effects));
        }
        let (Some(chain), out_of_order) = (record.chain, record.progress.out_of_order) else { return Ok(()) };
        let overtaken_by = record.overtaken_by;
        let last = self.effects[chain];
        self.effects[chain] = last.max(Some(seq));
        match last.filter(|last| *last > seq.max(overtaken_by) && !out_of_order) {
            Some(last) => Err(format!("the effect of {seq:?} came after that of {last:?} of its key")),
            None => Ok(()),
        }
    }
}

fn is_in_the_way(record: &Record) -> bool {
    matches!(record.fate, Fate::Pending | Fate::Dead { holds: Some(_), .. })
}
