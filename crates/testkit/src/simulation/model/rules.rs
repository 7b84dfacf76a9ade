//! What operators hold back.

use redrive_core::entry::Seq;
use redrive_core::event::Mode;
use redrive_core::triage::{Control, Controls, Rule};
use redrive_core::{Event, Moment};
use redrive_store::operate::Refusal;

use super::{Fate, Hold, Model, Record};

/// Queue, tenant and key of a chain.
pub(in super::super) type ChainName = (String, String, String);

/// A rule that holds.
#[derive(Debug, Clone)]
pub(in super::super) struct Held {
    pub(in super::super) rule: Rule,
    pub(in super::super) until: Option<Moment>,
    /// The commit that made it.
    pub(in super::super) since: u64,
}

impl Model {
    /// The name of a chain.
    pub(in super::super) fn chain_name(&self, chain: usize) -> ChainName {
        self.chain_names[chain].clone()
    }

    /// The rule by which nothing of the key of an event is handed out.
    pub(in super::super) fn withholding(&self, record: &Record) -> Option<&Held> {
        let (queue, tenant, key) = &self.chain_names[record.chain?];
        self.rules.iter().find(|held| held.rule.key() == Some((queue, tenant, key)))
    }

    /// Whether rules say that its owner starts it later, or never.
    pub(super) fn is_held_back(&self, record: &Record, controls: &Controls, now: Moment) -> bool {
        if controls.list.is_empty() {
            return false;
        }
        let Event { queue, tenant, .. } = &*record.event;
        let has_run = record.progress.attempts > 0 || record.progress.mode != Mode::Live;
        let to = controls.route(queue, now);
        let astray = self.specs.iter().any(|spec| spec.pull && to == Some(spec.name.as_str()));
        astray || controls.is_closed(queue, tenant, has_run, now)
    }

    /// The rules as a scheduler would know them.
    pub(in super::super) fn controls(&self) -> Controls {
        let control = |held: &Held| Control {
            rule: held.rule.clone(),
            since: Moment::default(),
            until: held.until,
            who: String::new(),
            why: String::new(),
        };
        Controls { version: 0, list: self.rules.iter().map(control).collect() }
    }

    pub(super) fn set(&mut self, rule: &Rule, until: Option<Moment>, at: Moment) -> Result<u64, Refusal> {
        let named = match rule {
            Rule::Pause { queue } | Rule::PauseRetries { queue } => vec![queue],
            Rule::QuarantineTenant { queue, .. } => queue.iter().collect(),
            Rule::QuarantineKey { queue, .. } | Rule::ParkKey { queue, .. } => vec![queue],
            Rule::Reroute { queue, to } => vec![queue, to],
        };
        for queue in named {
            self.declared(queue)?;
        }
        if let Rule::Reroute { queue, to } = rule {
            self.check_route(queue, to)?;
        }
        let of_key = rule.key().and_then(|(queue, ..)| self.specs.iter().find(|spec| spec.name == queue));
        if of_key.is_some_and(|spec| !spec.ordered) || until.is_some_and(|until| until <= at) {
            return Err(Refusal::Senseless(String::new()));
        }
        self.rules.retain(|held| !rule.replaces(&held.rule));
        self.rules.push(Held { rule: rule.clone(), until, since: self.stamp });
        self.care_less();
        Ok(1)
    }

    pub(super) fn lift(&mut self, rule: &Rule) -> Result<u64, Refusal> {
        let before = self.rules.len();
        self.rules.retain(|held| held.rule != *rule);
        self.care_less();
        if self.rules.len() == before { Err(Refusal::NoRule) } else { Ok(1) }
    }

    /// The time of some rules is over.
    pub(super) fn lift_ended(&mut self, now: Moment) {
        let ended = |held: &Held| held.until.is_some_and(|until| until <= now);
        let lifted = self.rules.iter().filter(|held| ended(held)).count();
        self.rules.retain(|held| !ended(held));
        if lifted > 0 {
            self.care_less();
        }
        self.audit.extend(std::iter::repeat_n(("lift", 1), lifted));
    }

    /// Whoever is held back is not waited for by those who are careful, and a killer among them may begin anew.
    pub(in super::super) fn care_less(&mut self) {
        for owner in &mut self.owners {
            owner.careful.clear();
        }
        for record in self.events.values_mut() {
            record.deaths.spree = 0;
        }
    }

    /// An order took an event away, or put it back: what its owner wrote before counts no more, and whoever waits
    /// behind it is not waited for by those who are careful.
    pub(super) fn care_no_more(&mut self, seq: Seq) {
        let Some(chain) = self.events.get(&seq).map(|record| record.chain) else { return };
        let same = |other: &Record| other.seq == seq || (chain.is_some() && other.chain == chain);
        let others: Vec<Seq> =
            self.events.values().filter(|other| same(other)).map(|other| other.seq).collect();
        for other in others {
            for owner in &mut self.owners {
                owner.careful.remove(&other);
            }
            if let Some(other) = self.events.get_mut(&other) {
                other.deaths.spree = 0;
            }
        }
        for owner in &mut self.owners {
            owner.struck.remove(&seq);
        }
    }

    pub(super) fn skip_head(&mut self, chain: usize) -> Result<u64, Refusal> {
        let first = self.first(chain).filter(|seq| is_holding(&self.events[seq]));
        let Some(record) = first.and_then(|seq| self.events.get_mut(&seq)) else {
            return Err(Refusal::NotParked);
        };
        let_go(record);
        self.relieve(chain);
        Ok(1)
    }

    pub(super) fn unpark(&mut self, chain: usize) -> Result<u64, Refusal> {
        let (queue, tenant, key) = self.chain_names[chain].clone();
        let mut changed = u64::from(self.lift(&Rule::ParkKey { queue, tenant, key }).is_ok());
        for seq in self.chains[chain].clone() {
            if let Some(record) = self.events.get_mut(&seq).filter(|record| is_holding(record)) {
                let_go(record);
                changed += 1;
            }
        }
        if changed == 0 { Err(Refusal::NotParked) } else { Ok(changed) }
    }

    /// What is pulled from has no handler.
    pub(super) fn check_route(&self, queue: &str, to: &str) -> Result<(), Refusal> {
        self.declared(queue)?;
        self.declared(to)?;
        let pulls = |name: &str| self.specs.iter().any(|spec| spec.name == name && spec.pull);
        if pulls(queue) || pulls(to) { Err(Refusal::Senseless(String::new())) } else { Ok(()) }
    }

    pub(super) fn declared(&self, queue: &str) -> Result<(), Refusal> {
        match self.specs.iter().any(|spec| spec.name == queue) {
            true => Ok(()),
            false => Err(Refusal::NoQueue { queue: queue.to_owned() }),
        }
    }
}

fn is_holding(record: &Record) -> bool {
    matches!(record.fate, Fate::Dead { holds: Some(Hold { .. }), .. })
}

/// A dead letter holds up nobody any more.
pub(super) fn let_go(record: &mut Record) {
    record.rev += 1;
    if let Fate::Dead { holds, .. } = &mut record.fate {
        *holds = None;
    }
}
