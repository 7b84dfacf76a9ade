//! The sum at the end.

use std::collections::BTreeMap;

use redrive_core::event::State;
use redrive_store::operate::{Group, GroupBy, GroupQuery};
use redrive_store::{Query, Store};

use super::World;
use super::perform::at_once;
use super::transact::effect_id;
use crate::simulation::intent::Sent;
use crate::simulation::model::{Check, Fate, Record};

impl World {
    /// Holds everything in the store against what is true.
    pub(super) fn audit(&mut self) -> Check {
        self.audit_publishers()?;
        self.audit_events()?;
        self.audit_counts()?;
        self.audit_effects()?;
        self.audit_desk()
    }

    /// Whoever was told that it is kept can find it.
    fn audit_publishers(&self) -> Check {
        for (number, intent) in self.intents.iter().enumerate() {
            let kept = self.model.is_known(number);
            match intent.sent {
                Sent::Acknowledged if !kept => {
                    return Err(format!("e{number} was acknowledged, and is lost"));
                }
                Sent::Disproved if kept => {
                    return Err(format!("e{number} is there, and its publisher was told that it is not"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn audit_events(&mut self) -> Check {
        for (number, intent) in self.intents.iter().enumerate() {
            let event = &intent.event;
            let found = at_once(self.store.find(&event.tenant, &event.queue, &event.id));
            let found = found.map_err(|error| format!("cannot look: {error}"))?;
            self.model.check_known(number, found.as_ref(), self.now)?;
        }
        let parked = |seq| self.model.is_parked(&self.model.events[seq]);
        for (seq, record) in &self.model.events {
            self.figures.fate(match record.fate {
                Fate::Pending if parked(seq) => "parked",
                Fate::Pending => "pending",
                Fate::Done => "done",
                Fate::Dropped => "dropped",
                Fate::Expired => "expired",
                Fate::Dead { reason, .. } => reason.as_str(),
                Fate::Discarded { restorable: true, .. } => "discarded",
                Fate::Discarded { .. } => "purged",
            });
        }
        self.model.gone.values().for_each(|_| self.figures.fate("edited"));
        Ok(())
    }

    /// What was accepted is done, dropped, expired, dead or still there: nothing else, and nothing twice.
    fn audit_counts(&self) -> Check {
        let listed = at_once(self.store.list(Query { limit: usize::MAX, ..Query::default() }));
        let listed = listed.map_err(|error| format!("cannot list: {error}"))?;
        let exist = self.model.events.values().filter(|record| record.fate.exists());
        let expected: Vec<_> = exist.map(|record| record.seq).collect();
        let found: Vec<_> = listed.events.iter().map(|(_, found)| found.seq).collect();
        if found != expected {
            return Err(format!("the store has {found:?}, and should have {expected:?}"));
        }
        let counts = at_once(self.store.count(self.now)).map_err(|error| format!("cannot count: {error}"))?;
        let dead = counts.iter().filter(|count| count.state == State::Dead);
        let dead: u64 = dead.map(|count| count.events).sum();
        let expected = self.model.events.values().filter(|record| matches!(record.fate, Fate::Dead { .. }));
        let (all, expected) = (counts.iter().map(|count| count.events).sum::<u64>(), expected.count() as u64);
        let discarded = counts.iter().filter(|count| count.state == State::Discarded);
        let all = all - discarded.map(|count| count.events).sum::<u64>();
        if dead != expected || all != found.len() as u64 {
            return Err(format!("the store counts {dead} dead of {all}, not {expected} of {}", found.len()));
        }
        Ok(())
    }

    /// Each effect is there once, where it should be.
    fn audit_effects(&self) -> Check {
        let table = self.store.table_snapshot();
        let count = |bytes: &Vec<u8>| u32::from(bytes.first().copied().unwrap_or(0));
        let found: BTreeMap<String, u32> =
            table.iter().map(|(id, bytes)| (id.clone(), count(bytes))).collect();
        let effects = self.model.events.values().filter(|record| record.effects > 0);
        let expected: BTreeMap<String, u32> =
            effects.map(|record| (effect_id(record.seq, record.intent), record.effects)).collect();
        if found != expected {
            return Err(format!("the effects are {found:?}, and should be {expected:?}"));
        }
        Ok(())
    }

    /// Groups have all dead letters, jobs say what became of theirs, and the audit has a line for each order.
    fn audit_desk(&self) -> Check {
        let cannot = |error: redrive_store::StoreError| format!("cannot look: {error}");
        let dead = |record: &&Record| matches!(record.fate, Fate::Dead { .. });
        let letters: Vec<&Record> = self.model.events.values().filter(dead).collect();
        let holding =
            letters.iter().filter(|letter| matches!(letter.fate, Fate::Dead { holds: Some(_), .. }));
        let expected = (letters.len() as u64, holding.count() as u64);
        for by in [GroupBy::Cause, GroupBy::Queue, GroupBy::Tenant, GroupBy::Type, GroupBy::Key] {
            let query = GroupQuery { by, limit: usize::MAX, ..GroupQuery::default() };
            let groups = at_once(self.store.groups(query)).map_err(cannot)?;
            let sum = |of: fn(&Group) -> u64| groups.iter().map(of).sum::<u64>();
            let found = (sum(|group| group.letters), sum(|group| group.keys_blocked));
            if found != expected {
                return Err(format!("groups by {by:?} have {found:?} letters and keys, not {expected:?}"));
            }
        }
        let jobs = at_once(self.store.jobs(None)).map_err(cannot)?;
        if jobs.len() != self.model.jobs.len() {
            return Err(format!("there are {} jobs, not {}", jobs.len(), self.model.jobs.len()));
        }
        jobs.iter().try_for_each(|job| self.model.check_job(job))?;
        let mut lines = at_once(self.store.audit(None, usize::MAX)).map_err(cannot)?;
        lines.reverse();
        let lines: Vec<_> = lines.iter().map(|line| (line.verb.as_str(), line.count)).collect();
        if lines != self.model.audit {
            return Err(format!("the audit has {lines:?}, and should have {:?}", self.model.audit));
        }
        Ok(())
    }
}
