//! The operators' rules.

use redrive_core::Moment;
use redrive_core::queue_entry::Seq;
use redrive_core::triage::{ActiveRule, ActiveRules, Rule};
use redrive_store::operate::Refusal;

use super::{Fate, Hold, Model, Record};

/// Queue, tenant and key of a chain.
pub(in super::super) type ChainName = (String, String, String);

/// A rule in force.
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

    /// The rule that holds back all events of an event's key.
    pub(in super::super) fn withholding(&self, record: &Record) -> Option<&Held> {
        let (queue, tenant, key) = &self.chain_names[record.chain?];
        self.rules.iter().find(|held| held.rule.key() == Some((queue, tenant, key)))
    }

    /// The rules as a scheduler would know them.
    pub(in super::super) fn controls(&self) -> ActiveRules {
        let control = |held: &Held| ActiveRule {
            rule: held.rule.clone(),
            since: Moment::default(),
            until: held.until,
            who: String::new(),
            why: String::new(),
        };
        ActiveRules { version: 0, list: self.rules.iter().map(control).collect() }
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
        self.hold_back(rule);
        Ok(1)
    }

    /// Owners may not see the events of a key that a rule is about.
    fn hold_back(&mut self, rule: &Rule) {
        let Some((queue, tenant, key)) = rule.key() else { return };
        let named = (queue.to_owned(), tenant.to_owned(), key.to_owned());
        let chain = self.chain_names.iter().position(|name| *name == named);
        for record in self.events.values().filter(|record| chain.is_some() && record.chain == chain) {
            self.owners[record.shard as usize].held_back.insert(record.seq);
        }
    }

    pub(super) fn lift(&mut self, rule: &Rule) -> Result<u64, Refusal> {
        let before = self.rules.len();
        self.rules.retain(|held| held.rule != *rule);
        if self.rules.len() == before { Err(Refusal::NoRule) } else { Ok(1) }
    }

    /// Some rules have ended.
    pub(super) fn lift_ended(&mut self, now: Moment) {
        let ended = |held: &Held| held.until.is_some_and(|until| until <= now);
        let lifted = self.rules.iter().filter(|held| ended(held)).count();
        self.rules.retain(|held| !ended(held));
        self.audit.extend(std::iter::repeat_n(("lift", 1), lifted));
    }

    /// An operator took or redrove an event: earlier writes of its owner count no more.
    pub(super) fn care_no_more(&mut self, seq: Seq) {
        for owner in &mut self.owners {
            owner.careful.remove(&seq);
            owner.struck.remove(&seq);
        }
        if let Some(record) = self.events.get_mut(&seq) {
            record.deaths.spree = 0;
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

    /// A pulled queue has no handler.
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

/// A dead letter's key is unparked.
pub(super) fn let_go(record: &mut Record) {
    record.rev += 1;
    if let Fate::Dead { holds, .. } = &mut record.fate {
        *holds = None;
    }
}
