//! Rules that hold events back. The store applies rules over a key, because it must not hand out a head that may not
//! run; the engine applies the others when it starts attempts.
//!
//! A rule holds until it is lifted. [`State::forget`] lifts an expired rule, so that its end is a commit that owners
//! are notified of.

use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::triage::{ActiveRule, ActiveRules, Operator, Rule};

use crate::operate::{Refusal, check_route};
use crate::stores::memory::row::{Chain, Row};
use crate::stores::memory::state::{Counter, State};

/// How many rules may be active: every hand-out of an event checks them.
const RULES_MAX: usize = 10_000;

impl State {
    pub(in crate::stores::memory) fn controls(&self) -> ActiveRules {
        let version = self.counters.get(&Counter::Recalls).copied().unwrap_or_default();
        ActiveRules { version, list: self.rules.iter().map(|(_, control)| control.clone()).collect() }
    }

    /// The rule that withholds a key.
    pub(in crate::stores::memory) fn withholding(&self, (stream, key): &Chain) -> Option<&Rule> {
        let stream = self.streams.get(stream)?;
        let named = (stream.queue.as_str(), stream.tenant.as_str(), &**key);
        self.rules.iter().map(|(rule, _)| rule).find(|rule| rule.key() == Some(named))
    }

    pub(in crate::stores::memory) fn set_rule(
        &mut self,
        rule: &Rule,
        until: Option<Moment>,
        why: &str,
        by: &Operator,
        at: Moment,
    ) -> Result<(), Refusal> {
        self.check_rule(rule)?;
        if until.is_some_and(|until| until <= at) {
            return Err(Refusal::Senseless("its end is in the past".to_owned()));
        }
        let replaced = self.rules.iter().map(|(other, _)| other).filter(|other| rule.replaces(other));
        let replaced: Vec<_> = replaced.cloned().collect();
        if replaced.is_empty() && self.rules.len() >= RULES_MAX {
            return Err(Refusal::Senseless(format!("there are {RULES_MAX} rules; lift some first")));
        }
        replaced.iter().for_each(|other| self.rules.remove(other));
        let control =
            ActiveRule { rule: rule.clone(), since: at, until, who: by.who.clone(), why: why.to_owned() };
        self.rules.put(rule.clone(), control);
        self.rule_changed(rule);
        Ok(())
    }

    pub(in crate::stores::memory) fn lift_rule(&mut self, rule: &Rule) -> Result<(), Refusal> {
        if !self.rules.contains(rule) {
            return Err(Refusal::NoRule);
        }
        self.rules.remove(rule);
        self.rule_changed(rule);
        Ok(())
    }

    fn rule_changed(&mut self, rule: &Rule) {
        if let Some(chain) = rule.key().and_then(|(queue, tenant, key)| self.chain(queue, tenant, key)) {
            self.lift_anew(&chain);
        }
        self.recall();
    }

    fn check_rule(&self, rule: &Rule) -> Result<(), Refusal> {
        match rule {
            Rule::Pause { queue } | Rule::PauseRetries { queue } => self.declared(queue),
            Rule::QuarantineTenant { queue: None, .. } => Ok(()),
            Rule::QuarantineTenant { queue: Some(queue), .. } => self.declared(queue),
            Rule::QuarantineKey { queue, .. } | Rule::ParkKey { queue, .. } => {
                self.declared(queue)?;
                if self.queues.get(queue).is_some_and(|queue| queue.ordered) {
                    return Ok(());
                }
                let what = format!("the queue {queue} is not ordered, so a key of it cannot be held back");
                Err(Refusal::Senseless(what))
            }
            Rule::Reroute { queue, to } => self.check_route(queue, to),
        }
    }

    /// Fails if a queue is not declared.
    pub(in crate::stores::memory) fn declared(&self, queue: &str) -> Result<(), Refusal> {
        match self.queues.get(&queue.to_owned()) {
            Some(_) => Ok(()),
            None => Err(Refusal::NoQueue { queue: queue.to_owned() }),
        }
    }

    /// Whether events of one queue may be run by the handler of another.
    pub(in crate::stores::memory) fn check_route(&self, queue: &str, to: &str) -> Result<(), Refusal> {
        self.declared(queue)?;
        self.declared(to)?;
        let pulls = |name: &str| self.queues.get(&name.to_owned()).is_some_and(|queue| queue.pull);
        check_route((queue, pulls(queue)), (to, pulls(to)))
    }

    fn chain(&self, queue: &str, tenant: &str, key: &str) -> Option<Chain> {
        let stream = self.stream_ids.get(&(queue.to_owned(), tenant.to_owned()))?;
        Some((*stream, Arc::from(key)))
    }

    /// Unblocks a key behind the dead letter at its head.
    pub(in crate::stores::memory) fn skip_head(
        &mut self,
        queue: &str,
        tenant: &str,
        key: &str,
    ) -> Result<(), Refusal> {
        let chain = self.chain(queue, tenant, key);
        let Some(chain) = chain else { return Err(Refusal::NotParked) };
        let head = self.members(&chain).next().cloned().filter(Row::holds);
        self.let_go(head.ok_or(Refusal::NotParked)?);
        self.relieve(&chain);
        Ok(())
    }

    /// Unblocks a key: all of its dead letters, and the rule that parks it.
    pub(in crate::stores::memory) fn unpark(
        &mut self,
        queue: &str,
        tenant: &str,
        key: &str,
    ) -> Result<u64, Refusal> {
        let (of_queue, of_tenant, of_key) = (queue.to_owned(), tenant.to_owned(), key.to_owned());
        let rule = Rule::ParkKey { queue: of_queue, tenant: of_tenant, key: of_key };
        let lifted = u64::from(self.lift_rule(&rule).is_ok());
        let chain = self.chain(queue, tenant, key);
        let members = chain.iter().flat_map(|chain| self.members(chain));
        let holding: Vec<_> = members.filter(|row| row.holds()).cloned().collect();
        let changed = lifted + holding.len() as u64;
        for row in holding {
            self.let_go(row);
        }
        if changed == 0 { Err(Refusal::NotParked) } else { Ok(changed) }
    }
}
