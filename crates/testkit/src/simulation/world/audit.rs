//! The final audit.

use std::collections::BTreeMap;

use redrive_core::event::State;
use redrive_store::operate::{Group, GroupBy, GroupQuery};
use redrive_store::{EventQuery, prelude::*};

use super::World;
use super::perform::at_once;
use super::transact::effect_id;
use crate::simulation::intent::Sent;
use crate::simulation::model::{Check, Fate, Record};

impl World {
    /// Compares everything in the store with the truth.
    pub(super) fn audit(&mut self) -> Check {
        self.audit_publishers()?;
        self.audit_events()?;
        self.audit_counts()?;
        self.audit_effects()?;
        self.audit_desk()
    }

    /// An acknowledged event can be found.
    fn audit_publishers(&self) -> Check {
        for (number, intent) in self.intents.iter().enumerate() {
            let kept = self.model.is_known(number);
            match intent.sent {
                Sent::Acknowledged if !kept => {
                    return Err(format!("e{number} was acknowledged, and is not in the store"));
                }
                Sent::Disproved if kept => {
                    return Err(format!(
                        "e{number} is in the store, and its publisher was told that it is not"
                    ));
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
            let found = found.map_err(|error| format!("a lookup failed: {error}"))?;
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

    /// An accepted event is done, dropped, expired, dead or still there: nothing else, and nothing twice.
    fn audit_counts(&self) -> Check {
        let listed = at_once(self.store.list(EventQuery { limit: usize::MAX, ..EventQuery::default() }));
        let listed = listed.map_err(|error| format!("a listing failed: {error}"))?;
        let exist = self.model.events.values().filter(|record| record.fate.exists());
        let expected: Vec<_> = exist.map(|record| record.seq).collect();
        let found: Vec<_> = listed.events.iter().map(|(_, found)| found.seq).collect();
        if found != expected {
            return Err(format!(
                "the store lists other events than were published: {found:?} instead of {expected:?}"
            ));
        }
        let counts =
            at_once(self.store.count(self.now)).map_err(|error| format!("a count failed: {error}"))?;
        let dead = counts.iter().filter(|count| count.state == State::Dead);
        let dead: u64 = dead.map(|count| count.events).sum();
        let expected = self.model.events.values().filter(|record| matches!(record.fate, Fate::Dead { .. }));
        let (all, expected) = (counts.iter().map(|count| count.events).sum::<u64>(), expected.count() as u64);
        let discarded = counts.iter().filter(|count| count.state == State::Discarded);
        let all = all - discarded.map(|count| count.events).sum::<u64>();
        if dead != expected || all != found.len() as u64 {
            return Err(format!(
                "the store counts {dead} dead events of {all}, instead of {expected} of {}",
                found.len()
            ));
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
            return Err(format!(
                "effects are missing, or happened too often: {found:?} instead of {expected:?}"
            ));
        }
        Ok(())
    }

    /// Groups have all dead letters, jobs have the right counts, and the audit log has an entry for each
    /// command.
    fn audit_desk(&self) -> Check {
        let cannot = |error: redrive_store::StoreError| format!("a lookup failed: {error}");
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
                return Err(format!(
                    "groups of dead letters by {by:?} do not add up: letters and keys are {found:?} instead of {expected:?}"
                ));
            }
        }
        let jobs = at_once(self.store.jobs(None)).map_err(cannot)?;
        if jobs.len() != self.model.jobs.len() {
            return Err(format!("the store has {} jobs instead of {}", jobs.len(), self.model.jobs.len()));
        }
        jobs.iter().try_for_each(|job| self.model.check_job(job))?;
        let mut lines = at_once(self.store.audit(None, usize::MAX)).map_err(cannot)?;
        lines.reverse();
        let lines: Vec<_> = lines.iter().map(|line| (line.verb.as_str(), line.count)).collect();
        if lines != self.model.audit {
            return Err(format!(
                "the audit log differs from what operators did: {lines:?} instead of {:?}",
                self.model.audit
            ));
        }
        Ok(())
    }
}
