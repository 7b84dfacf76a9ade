//! Who owns a shard, what was noted there, and who may have killed its owner.

use std::collections::BTreeSet;

use redrive_core::Moment;
use redrive_core::entry::{Change, Grant, Seq, Taken};
use redrive_core::event::DeadReason;
use redrive_core::triage::Controls;

use super::{Check, Fate, Model, Record};

/// How many deaths a killer may cause before it is convicted.
const KILLS_MAX: u32 = 5;
/// How many lone deaths convict.
const STRIKES: u32 = 3;

/// Who owns a shard.
#[derive(Debug, Default)]
pub(in super::super) struct Owner {
    pub(in super::super) epoch: u64,
    /// Whether somebody has it, or died with it.
    pub(in super::super) owned: bool,
    noted: Vec<Seq>,
    /// Those that its present owner struck, and that have not ended since.
    pub(super) struck: BTreeSet<Seq>,
    /// Where the owner before died: what was due by then, and has to be noted before it runs.
    pub(super) careful: BTreeSet<Seq>,
}

impl Model {
    pub(in super::super) fn is_current(&self, grant: Grant) -> bool {
        let owner = &self.owners[grant.shard as usize];
        owner.owned && owner.epoch == grant.epoch
    }

    /// A shard was taken, also where nobody heard of it, by a node that knows of these rules. Gives whether the
    /// owner before had died.
    pub(in super::super) fn take(&mut self, shard: u32, told: &Controls, now: Moment) -> bool {
        self.excuse(shard);
        let owner = &mut self.owners[shard as usize];
        let unclean = owner.owned;
        owner.owned = true;
        owner.epoch += 1;
        for seq in std::mem::take(&mut owner.noted) {
            let Some(record) = self.events.get_mut(&seq) else { continue };
            if record.fate == Fate::Pending {
                record.progress.suspect = true;
                record.rev += 1;
            }
        }
        // Whoever was not at the head of its key was not under way.
        let here = self.events.values().filter(|record| unclean && record.shard == shard);
        let due = here.filter(|record| record.progress.due <= now && self.is_runnable(record));
        // Nobody waits for what operators hold back.
        let rules = self.controls();
        let held_back =
            |record: &Record| [&rules, told].iter().any(|rules| self.is_held_back(record, rules, now));
        let due = due.filter(|record| !held_back(record));
        self.owners[shard as usize].careful = due.map(|record| record.seq).collect();
        unclean
    }

    /// What the store said of a shard that was taken.
    pub(in super::super) fn check_taken(&self, taken: &Taken, unclean: bool) -> Check {
        let Taken { grant, suspects, streams, .. } = taken;
        let owner = &self.owners[grant.shard as usize];
        if grant.epoch != owner.epoch || taken.unclean != unclean {
            return Err(format!("{grant:?} was taken as unclean = {}, not {unclean}", taken.unclean));
        }
        let here = |seq: &Seq| self.events.get(seq).filter(|record| record.shard == grant.shard);
        let living = self.events.values().filter(|record| record.shard == grant.shard);
        let expected: Vec<Seq> = living
            .clone()
            .filter(|record| self.is_runnable(record) && record.progress.suspect)
            .map(|record| record.seq)
            .collect();
        let mut named: Vec<Seq> = suspects.iter().map(|entry| entry.seq).collect();
        named.sort_unstable();
        if named != expected || !named.iter().all(|seq| here(seq).is_some()) {
            return Err(format!("the suspects of {grant:?} are {expected:?}, not {named:?}"));
        }
        let mut living = living.filter(|record| record.fate == Fate::Pending);
        match living.find(|record| !streams.iter().any(|(stream, ..)| *stream == record.stream)) {
            Some(record) => Err(format!("the stream of {:?} is not among those of its shard", record.seq)),
            None => Ok(()),
        }
    }

    pub(in super::super) fn release(&mut self, shard: u32) {
        let owner = &mut self.owners[shard as usize];
        owner.owned = false;
        owner.noted.clear();
        owner.struck.clear();
    }

    pub(in super::super) fn note(&mut self, shard: u32, under_way: Vec<Seq>) {
        self.owners[shard as usize].noted = under_way;
    }

    /// A settle of the shard's owner happened: a strike is there, or is over.
    pub(in super::super) fn strike(&mut self, shard: u32, seq: Seq, change: &Change) {
        let owner = &mut self.owners[shard as usize];
        if matches!(change, Change::Strike) {
            owner.struck.insert(seq);
        } else {
            owner.struck.remove(&seq);
            owner.careful.remove(&seq);
        }
    }

    /// Whether an event was noted, or struck, by the present owner of its shard.
    pub(super) fn is_noted(&self, shard: u32, seq: Seq) -> bool {
        let owner = &self.owners[shard as usize];
        owner.noted.contains(&seq) || owner.struck.contains(&seq)
    }

    /// Its handler killed the process, as whose it ran.
    pub(in super::super) fn killed(&mut self, grant: Grant, seq: Seq) -> Check {
        let current = self.is_current(grant);
        let blocker = self.events.get(&seq).and_then(|record| self.blocker(record));
        let is_overtaken = blocker.is_some_and(|before| before.overtaken_by >= seq);
        let Some(record) = self.events.get_mut(&seq) else { return Ok(()) };
        if !current {
            // Nobody counts what an old owner dies of; but it did it.
            record.deaths.excuses += 1;
            return Ok(());
        }
        record.deaths.kills += 1;
        // One that came late is before it now: until that is over nobody looks for it, and care may end meanwhile.
        record.deaths.spree = if is_overtaken { 0 } else { record.deaths.spree + 1 };
        if record.deaths.spree > KILLS_MAX {
            return Err(format!("{seq:?} killed its process {} times", record.deaths.spree));
        }
        Ok(())
    }

    /// The owner of a shard died, or was taken for dead, of something outside: whoever ran alone is innocent
    /// of that.
    pub(in super::super) fn excuse(&mut self, shard: u32) {
        for seq in std::mem::take(&mut self.owners[shard as usize].struck) {
            if let Some(record) = self.events.get_mut(&seq) {
                record.deaths.excuses += 1;
            }
        }
    }

    /// The owner died of another handler: nobody else is excused by that.
    pub(in super::super) fn died(&mut self, shard: u32) {
        self.owners[shard as usize].struck.clear();
    }

    /// An event is a dead letter now: if it is as a killer, it had three lone deaths.
    pub(super) fn convict(&self, seq: Seq, reason: DeadReason) -> Check {
        let Some(record) = self.events.get(&seq).filter(|_| reason == DeadReason::KilledProcess) else {
            return Ok(());
        };
        let super::Deaths { kills, excuses, .. } = record.deaths;
        if kills + excuses < STRIKES {
            return Err(format!(
                "{seq:?} is convicted of killing the process: it did so {kills} times, and ran alone {excuses} \
                 times when something else did"
            ));
        }
        Ok(())
    }
}
