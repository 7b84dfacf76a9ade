//! The owners of shards, their dispatch notes, and which event may have crashed an owner.

use std::collections::BTreeSet;

use redrive_core::Moment;
use redrive_core::event::DeadReason;
use redrive_core::queue_entry::{EventChange, FencingToken, Seq, TakenShard};

use super::{Check, Fate, Model, Record};

/// How many crashes a poisonous event may cause before it becomes a dead letter.
const KILLS_MAX: u32 = 5;
/// The crash count at which an event becomes a dead letter.
const STRIKES: u32 = 3;

/// The owner of a shard.
#[derive(Debug, Default)]
pub(in super::super) struct Owner {
    pub(in super::super) epoch: u64,
    /// Whether a node owns it, or died as its owner.
    pub(in super::super) owned: bool,
    noted: Vec<Seq>,
    /// Events whose crash count the current owner wrote, and that have not ended since.
    pub(super) struck: BTreeSet<Seq>,
    /// If the previous owner died: the events that were due by then, which must be noted before they run.
    pub(super) careful: BTreeSet<Seq>,
    /// The events among them that could run then: one of them may have been running.
    suspicious: BTreeSet<Seq>,
    /// Events that operators held back by their keys since the shard was taken: the owner may not have seen
    /// them.
    pub(super) held_back: BTreeSet<Seq>,
}

impl Model {
    pub(in super::super) fn is_current(&self, token: FencingToken) -> bool {
        let owner = &self.owners[token.shard as usize];
        owner.owned && owner.epoch == token.epoch
    }

    /// A shard was taken, perhaps without its new owner noticing. Returns whether the previous owner had
    /// died.
    pub(in super::super) fn take(&mut self, shard: u32, now: Moment) -> bool {
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
        // Rules and earlier events of a key may hold them back for long. They are noted whenever they come
        // up.
        let here = self.events.values().filter(|record| unclean && record.shard == shard);
        let due = here.filter(|record| record.progress.due <= now && record.fate == Fate::Pending);
        let due: Vec<&Record> = due.collect();
        let suspicious =
            due.iter().filter(|record| self.is_runnable(record)).map(|record| record.seq).collect();
        let careful = due.iter().map(|record| record.seq).collect();
        let owner = &mut self.owners[shard as usize];
        (owner.careful, owner.suspicious) = (careful, suspicious);
        owner.held_back.clear();
        let withheld = |record: &&Record| record.shard == shard && self.withholding(record).is_some();
        let withheld = self.events.values().filter(withheld).map(|record| record.seq).collect();
        self.owners[shard as usize].held_back = withheld;
        unclean
    }

    /// Checks the store's answer to a take.
    pub(in super::super) fn check_taken(&self, taken: &TakenShard, unclean: bool) -> Check {
        let TakenShard { token, suspects, streams, .. } = taken;
        let owner = &self.owners[token.shard as usize];
        if token.epoch != owner.epoch || taken.unclean != unclean {
            return Err(format!(
                "the store gave {token:?} with unclean = {} instead of {unclean}",
                taken.unclean
            ));
        }
        let here = |seq: &Seq| self.events.get(seq).filter(|record| record.shard == token.shard);
        let living = self.events.values().filter(|record| record.shard == token.shard);
        let expected: Vec<Seq> = living
            .clone()
            .filter(|record| self.is_runnable(record) && record.progress.suspect)
            .map(|record| record.seq)
            .collect();
        let mut named: Vec<Seq> = suspects.iter().map(|entry| entry.seq).collect();
        named.sort_unstable();
        if named != expected || !named.iter().all(|seq| here(seq).is_some()) {
            return Err(format!(
                "the store named other suspects of {token:?}: {named:?} instead of {expected:?}"
            ));
        }
        let mut living = living.filter(|record| record.fate == Fate::Pending);
        match living.find(|record| !streams.iter().any(|(stream, ..)| *stream == record.stream)) {
            Some(record) => {
                Err(format!("the store left out the stream of {:?} when its shard was taken", record.seq))
            }
            None => Ok(()),
        }
    }

    /// What an owner must have settled or rescheduled before it releases a shard as clean.
    pub(in super::super) fn check_released(&self, shard: u32) -> Check {
        let left = |seq: &&Seq| self.events.get(seq).is_some_and(|record| self.is_runnable(record));
        match self.owners[shard as usize].suspicious.iter().find(left) {
            Some(seq) => {
                Err(format!("shard {shard} is released as clean, and {seq:?} may have killed an owner"))
            }
            None => Ok(()),
        }
    }

    /// A shard is released as clean. Its owner cannot see events that an operator holds back, or that follow
    /// another event of their key, so the crash count of a poisonous event among them begins anew.
    pub(in super::super) fn release(&mut self, shard: u32) {
        let held_back = &self.owners[shard as usize].held_back;
        let is_unseen = |record: &&Record| {
            record.shard == shard && (!self.is_runnable(record) || held_back.contains(&record.seq))
        };
        let unseen: Vec<Seq> = self.events.values().filter(is_unseen).map(|record| record.seq).collect();
        for seq in unseen {
            if let Some(record) = self.events.get_mut(&seq) {
                record.deaths.spree = 0;
            }
        }
        let owner = &mut self.owners[shard as usize];
        owner.owned = false;
        owner.noted.clear();
        owner.struck.clear();
    }

    pub(in super::super) fn note(&mut self, shard: u32, under_way: Vec<Seq>) {
        self.owners[shard as usize].noted = under_way;
    }

    /// A settle of the shard's owner happened: a crash count is there, or is over.
    pub(in super::super) fn crash(&mut self, shard: u32, seq: Seq, change: &EventChange) {
        let owner = &mut self.owners[shard as usize];
        if matches!(change, EventChange::CountCrash) {
            owner.struck.insert(seq);
        } else {
            owner.struck.remove(&seq);
            owner.careful.remove(&seq);
            owner.suspicious.remove(&seq);
        }
    }

    /// Whether the current owner of its shard has noted an event or written its crash count.
    pub(super) fn is_noted(&self, shard: u32, seq: Seq) -> bool {
        let owner = &self.owners[shard as usize];
        owner.noted.contains(&seq) || owner.struck.contains(&seq)
    }

    /// Its handler crashed the process that ran it under this fencing token.
    pub(in super::super) fn killed(&mut self, token: FencingToken, seq: Seq) -> Check {
        let current = self.is_current(token);
        let Some(record) = self.events.get_mut(&seq) else { return Ok(()) };
        if !current {
            // Crashes of a former owner do not count, but this event caused one.
            record.deaths.excuses += 1;
            return Ok(());
        }
        record.deaths.kills += 1;
        record.deaths.spree += 1;
        if record.deaths.spree > KILLS_MAX {
            return Err(format!("{seq:?} killed its process {} times and still runs", record.deaths.spree));
        }
        Ok(())
    }

    /// The owner of a shard died, or was taken for dead, for an outside reason: the event that ran alone is
    /// innocent.
    pub(in super::super) fn excuse(&mut self, shard: u32) {
        for seq in std::mem::take(&mut self.owners[shard as usize].struck) {
            if let Some(record) = self.events.get_mut(&seq) {
                record.deaths.excuses += 1;
            }
        }
    }

    /// The owner died of another handler: that excuses no other event.
    pub(in super::super) fn died(&mut self, shard: u32) {
        self.owners[shard as usize].struck.clear();
    }

    /// An event becomes a dead letter: if the reason is crashes, it crashed the process three times while it
    /// ran alone.
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
