//! Loading: the due events of a stream, heads of keys only.

use std::collections::BTreeMap;

use redrive_core::Moment;
use redrive_core::planted::{PlantedBug, has};
use redrive_core::queue_entry::{QueueEntry, Seq, StreamId};

use super::row::RunnableKey;
use super::state::State;
use crate::error::StoreError;
use crate::store::{LoadRequest, LoadedEvents, OverdueDeadLetter};

/// The largest seq that each owner has seen: no store may rely on it, and a planted bug does.
pub(super) type Cursors = BTreeMap<(u32, u64, StreamId), Seq>;

impl State {
    pub(super) fn load(&self, load: &LoadRequest, cursors: &mut Cursors) -> Result<LoadedEvents, StoreError> {
        self.own(load.token)?;
        let cursor = cursors.entry((load.token.shard, load.token.epoch, load.stream)).or_insert(Seq(0));
        if self.is_pulled(load.stream) {
            // An owner does not get the events of a pulled queue, but its load still unblocks keys whose dead letters
            // are overdue.
            return Ok(LoadedEvents { overdue: self.overdue(load), ..LoadedEvents::default() });
        }
        let (live, more_live) = self.flow(load, false, load.live_max, *cursor);
        let (retry, more_retry) = self.flow(load, true, load.retry_max, *cursor);
        let entries: Vec<_> = live.into_iter().chain(retry).collect();
        *cursor = entries.iter().map(|entry| entry.seq).max().unwrap_or(*cursor).max(*cursor);
        Ok(LoadedEvents {
            entries,
            more_live,
            more_retry,
            next_due: self.next_due(load),
            overdue: self.overdue(load),
            damaged: Vec::new(),
        })
    }

    /// Due events that have not run yet, or the others, and whether there are more.
    fn flow(&self, load: &LoadRequest, retry: bool, max: usize, cursor: Seq) -> (Vec<QueueEntry>, bool) {
        let (from, to) = (place(load, retry, Moment::default(), 0), place(load, retry, load.until, u64::MAX));
        let due = self.runnable.range(from..=to).map(|((.., seq), ())| seq);
        let seen = |seq: &&Seq| has(PlantedBug::CursorLoads) && **seq <= cursor;
        let mut due = due.filter(|seq| load.except.binary_search(seq).is_err() && !seen(seq));
        let (mut entries, mut bytes) = (Vec::new(), 0);
        for row in due.by_ref().take(max).filter_map(|seq| self.rows.get(seq)) {
            bytes += row.entry.event.payload.len();
            entries.push(row.entry.clone());
            if bytes > load.bytes_max {
                break;
            }
        }
        (entries, due.next().is_some())
    }

    /// The next time at which something happens in a stream: an event is due, or the block of a dead letter ends.
    fn next_due(&self, load: &LoadRequest) -> Option<Moment> {
        let after = |retry| {
            let (from, to) =
                (place(load, retry, load.until, u64::MAX), place(load, retry, Moment::FAR, u64::MAX));
            let mut later = self.runnable.range(from..=to).map(|((.., due, seq), ())| (*due, *seq));
            later.find(|(_, seq)| load.except.binary_search(seq).is_err()).map(|(due, _)| due)
        };
        let (stream, shard) = (load.stream, load.token.shard);
        let (from, to) =
            ((stream, shard, load.until, Seq(u64::MAX)), (stream, shard, Moment::FAR, Seq(u64::MAX)));
        let freed = self.holding.range(from..=to).next().map(|((_, _, until, _), ())| *until);
        [after(false), after(true), freed].into_iter().flatten().min()
    }

    fn overdue(&self, load: &LoadRequest) -> Vec<OverdueDeadLetter> {
        let (stream, shard) = (load.stream, load.token.shard);
        let (from, to) =
            ((stream, shard, Moment::default(), Seq(0)), (stream, shard, load.until, Seq(u64::MAX)));
        let held = self.holding.range(from..=to).filter_map(|((.., seq), ())| self.rows.get(seq));
        held.map(|row| OverdueDeadLetter { seq: row.entry.seq, rev: row.entry.rev }).collect()
    }
}

fn place(load: &LoadRequest, retry: bool, due: Moment, seq: u64) -> RunnableKey {
    (load.stream, load.token.shard, retry, due, Seq(seq))
}
