//! Loading: what is due in a stream, heads of their keys alone.

use std::collections::BTreeMap;

use redrive_core::Moment;
use redrive_core::entry::{Entry, Seq, StreamId};
use redrive_core::planted::{Flaw, has};

use super::row::Place;
use super::state::State;
use crate::error::StoreError;
use crate::store::{Load, Loaded, Overdue};

/// The largest seq that each owner has seen: what no store may go by, and a planted bug does.
pub(super) type Cursors = BTreeMap<(u32, u64, StreamId), Seq>;

impl State {
    pub(super) fn load(&self, load: &Load, cursors: &mut Cursors) -> Result<Loaded, StoreError> {
        self.own(load.grant)?;
        let cursor = cursors.entry((load.grant.shard, load.grant.epoch, load.stream)).or_insert(Seq(0));
        if self.is_pulled(load.stream) {
            // Its events are not for an owner, but its dead letters are: whoever loads lets their keys go on.
            return Ok(Loaded { overdue: self.overdue(load), ..Loaded::default() });
        }
        let (live, more_live) = self.flow(load, false, load.live_max, *cursor);
        let (retry, more_retry) = self.flow(load, true, load.retry_max, *cursor);
        let entries: Vec<_> = live.into_iter().chain(retry).collect();
        *cursor = entries.iter().map(|entry| entry.seq).max().unwrap_or(*cursor).max(*cursor);
        Ok(Loaded {
            entries,
            more_live,
            more_retry,
            next_due: self.next_due(load),
            overdue: self.overdue(load),
            damaged: Vec::new(),
        })
    }

    /// What is due of those that have not run yet, or of the others, and whether there is more.
    fn flow(&self, load: &Load, retry: bool, max: usize, cursor: Seq) -> (Vec<Entry>, bool) {
        let (from, to) = (place(load, retry, Moment::default(), 0), place(load, retry, load.until, u64::MAX));
        let due = self.runnable.range(from..=to).map(|((.., seq), ())| seq);
        let seen = |seq: &&Seq| has(Flaw::CursorLoads) && **seq <= cursor;
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

    /// When something happens next in a stream: an event is due, or a dead letter has held up others for long
    /// enough.
    fn next_due(&self, load: &Load) -> Option<Moment> {
        let after = |retry| {
            let (from, to) =
                (place(load, retry, load.until, u64::MAX), place(load, retry, Moment::FAR, u64::MAX));
            let mut later = self.runnable.range(from..=to).map(|((.., due, seq), ())| (*due, *seq));
            later.find(|(_, seq)| load.except.binary_search(seq).is_err()).map(|(due, _)| due)
        };
        let (stream, shard) = (load.stream, load.grant.shard);
        let (from, to) =
            ((stream, shard, load.until, Seq(u64::MAX)), (stream, shard, Moment::FAR, Seq(u64::MAX)));
        let freed = self.holding.range(from..=to).next().map(|((_, _, until, _), ())| *until);
        [after(false), after(true), freed].into_iter().flatten().min()
    }

    fn overdue(&self, load: &Load) -> Vec<Overdue> {
        let (stream, shard) = (load.stream, load.grant.shard);
        let (from, to) =
            ((stream, shard, Moment::default(), Seq(0)), (stream, shard, load.until, Seq(u64::MAX)));
        let held = self.holding.range(from..=to).filter_map(|((.., seq), ())| self.rows.get(seq));
        held.map(|row| Overdue { seq: row.entry.seq, rev: row.entry.rev }).collect()
    }
}

fn place(load: &Load, retry: bool, due: Moment, seq: u64) -> Place {
    (load.stream, load.grant.shard, retry, due, Seq(seq))
}
