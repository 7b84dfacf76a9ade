//! Compares what a store shows with the truth.

use redrive_core::Moment;
use redrive_core::event::State;
use redrive_core::queue_entry::{LoadRequest, LoadedEvents, QueueEntry, Seq};
use redrive_store::EventStatus;

use super::{Check, Fate, Model, Record};

impl Model {
    /// Checks an event that the store returned as runnable.
    pub(in super::super) fn check_handed_out(&self, entry: &QueueEntry) -> Check {
        let seq = entry.seq;
        let Some(record) = self.events.get(&seq) else { return Err(format!("{seq:?} was never accepted")) };
        if entry.rev != record.rev || record.fate != Fate::Pending {
            return Err(format!(
                "{seq:?} is handed out as of rev {}, but is {:?} as of rev {}",
                entry.rev, record.fate, record.rev
            ));
        }
        if let Some(before) = self.blocker(record) {
            return Err(format!("{seq:?} is handed out before {:?} of its key is over", before.seq));
        }
        if !self.is_runnable(record) {
            return Err(format!("{seq:?} is handed out though it is held back or leased"));
        }
        let (is, should) = (&entry.progress, &record.progress);
        if (is.due, is.attempts, is.crash_count, is.suspect, &is.route, is.out_of_order)
            != (
                should.due,
                should.attempts,
                should.crash_count,
                should.suspect,
                &should.route,
                should.out_of_order,
            )
            || entry.event.id != record.event.id
        {
            return Err(format!("{seq:?} is handed out as {is:?}, but is {should:?}"));
        }
        Ok(())
    }

    /// A load finds everything that may run and is due, and nothing else.
    pub(in super::super) fn check_loaded(&self, load: &LoadRequest, loaded: &LoadedEvents) -> Check {
        for entry in &loaded.entries {
            self.check_handed_out(entry)?;
            if entry.progress.due > load.until || load.except.contains(&entry.seq) {
                return Err(format!("{:?} was loaded, and was not asked for", entry.seq));
            }
        }
        let here = |record: &&Record| record.stream == load.stream && record.shard == load.token.shard;
        let runnable = || {
            let here = self.events.values().filter(here).filter(|record| self.is_runnable(record));
            here.filter(|record| !load.except.contains(&record.seq))
        };
        let found = |seq: Seq| loaded.entries.iter().any(|entry| entry.seq == seq);
        for record in runnable() {
            let live = record.progress.attempts == 0 && record.progress.mode.as_str() == "live";
            let more = if live { loaded.more_live } else { loaded.more_retry };
            let seq = record.seq;
            if record.progress.due <= load.until && !found(seq) && !more {
                return Err(format!("{seq:?} may run and is due, and was not loaded: {record:?}"));
            }
            let later = record.progress.due > load.until;
            if later && loaded.next_due.is_none_or(|next| next > record.progress.due) {
                return Err(format!("{seq:?} is due later, and the load says {:?}", loaded.next_due));
            }
        }
        let overdue = self.overdue(load.until).filter(here).find(|record| {
            !loaded.overdue.iter().any(|letter| (letter.seq, letter.rev) == (record.seq, record.rev))
        });
        match overdue {
            Some(record) => Err(format!(
                "a load left out the dead letter {:?}, whose time to park its key is over",
                record.seq
            )),
            None => Ok(()),
        }
    }

    /// Checks a store's answer about an identity.
    pub(in super::super) fn check_found(
        &self,
        record: &Record,
        found: Option<&EventStatus>,
        now: Moment,
    ) -> Check {
        let seq = record.seq;
        let Some(found) = found else {
            if record.fate.exists() || now <= record.remembered {
                return Err(format!("{seq:?} ({:?}) is forgotten", record.fate));
            }
            return Ok(());
        };
        let out = record.lease.as_ref().is_some_and(|lease| lease.out);
        let pending = match found.state {
            State::Ready | State::Waiting | State::Parked | State::Quarantined => !out,
            State::Running => out,
            _ => false,
        };
        let same = record.fate.state().map_or(pending, |state| state == found.state);
        if found.seq != seq || !same {
            return Err(format!(
                "{seq:?} is {:?}, but the store says {:?} of {:?}",
                record.fate, found.state, found.seq
            ));
        }
        let holds = matches!(record.fate, Fate::Dead { holds: Some(_), .. });
        if found.holds != holds || (record.fate.exists() && found.rev != record.rev) {
            return Err(format!("{seq:?} is {record:?}, but the store says {found:?}"));
        }
        if found.attempts != record.progress.attempts || found.result != record.result {
            return Err(format!(
                "{seq:?} took {} attempts and left {:?}, but the store says {} and {:?}",
                record.progress.attempts, record.result, found.attempts, found.result
            ));
        }
        Ok(())
    }
}
