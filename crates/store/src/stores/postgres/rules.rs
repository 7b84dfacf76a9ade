//! Rules that hold, as an operator made them.
//!
//! Those over a key are the store's own: whoever hands out the head of a key asks whether a rule withholds it. There are
//! few rules, and they are read in the transaction that asks.

use std::sync::Arc;

use redrive_core::triage::{Control, Controls, Rule};
use sqlx::Row;

use super::desk::{DeskAt, rows, run};
use super::faults::{Step, damaged};
use super::rows::{Damage, Stream};
use crate::operate::{Refusal, check_route};
use crate::stores::shared::numbers::{bits, from_moment};
use crate::stores::shared::rules::{RULES_MAX, queues, read_rule, rule_text};
pub(super) use crate::stores::shared::rules::{Rules, View, held_by};

impl DeskAt<'_> {
    /// The rules that hold, and one that nobody can read, if there is one.
    async fn read_rules(&mut self) -> Step<(Controls, Option<String>)> {
        let found = rows!(
            self,
            "SELECT rule, since, until, who, why, orders FROM redrive.meta LEFT JOIN redrive.rule ON true"
        )?;
        let mut controls = Controls { version: 0, list: Vec::new() };
        let mut wrong = None;
        for row in found {
            controls.version = bits(row.try_get(5)?);
            if row.try_get::<Option<&str>, _>(0)?.is_none() {
                continue;
            }
            match read_rule(&row) {
                Ok(Ok(control)) => controls.list.push(control),
                Ok(Err(text)) => wrong = Some(text),
                Err(Damage) => wrong = Some(String::new()),
            }
        }
        Ok((controls, wrong))
    }

    /// The rules that hold, for whoever asks.
    pub(super) async fn controls(&mut self) -> Step<Controls> {
        match self.read_rules().await? {
            (_, Some(rule)) => Err(damaged("rule", rule).into()),
            (controls, None) => Ok(Rules::new(controls).controls),
        }
    }

    /// The rules that hold. One that nobody can read holds nothing.
    pub(super) async fn rules(&mut self) -> Step<Arc<Rules>> {
        if let Some(rules) = &self.rules {
            return Ok(Arc::clone(rules));
        }
        let rules = Arc::new(Rules::new(self.read_rules().await?.0));
        self.rules = Some(Arc::clone(&rules));
        Ok(rules)
    }

    /// What a look is made with.
    pub(super) async fn view(&mut self) -> Step<View> {
        Ok(View { now: self.office.seen.now(), rules: self.rules().await? })
    }

    /// Whether a rule withholds a key.
    pub(super) async fn is_withheld(&mut self, stream: &Stream, key: &str) -> Step<bool> {
        Ok(self.rules().await?.withholding(stream, key).is_some())
    }

    /// The keys of a stream that rules withhold.
    pub(super) async fn withheld(&mut self, stream: &Stream) -> Step<Vec<String>> {
        let rules = self.rules().await?;
        let keys = rules.controls.list.iter().filter_map(|control| control.rule.key());
        let own = keys.filter(|(queue, tenant, _)| stream.queue == *queue && stream.tenant == *tenant);
        Ok(own.map(|(_, _, key)| key.to_owned()).collect())
    }

    /// A rule holds from now on.
    pub(super) async fn set_rule(&mut self, control: &Control) -> Step<Result<(), Refusal>> {
        if control.until.is_some_and(|until| until <= control.since) {
            return Ok(Err(Refusal::Senseless("its end is over already".to_owned())));
        }
        for queue in queues(&control.rule) {
            if self.spec(queue).await?.is_none() {
                return Ok(Err(Refusal::NoQueue { queue: queue.to_owned() }));
            }
        }
        if let Some((queue, ..)) = control.rule.key()
            && self.spec(queue).await?.is_some_and(|queue| !queue.ordered)
        {
            let what =
                format!("the queue {queue} keeps no order of keys, so a key of it cannot be held back");
            return Ok(Err(Refusal::Senseless(what)));
        }
        if let Rule::Reroute { queue, to } = &control.rule
            && let Err(refusal) = self.check_route(queue, to).await?
        {
            return Ok(Err(refusal));
        }
        let had = self.rules().await?;
        let replaced: Vec<_> =
            had.controls.list.iter().filter(|old| control.rule.replaces(&old.rule)).collect();
        if replaced.is_empty() && had.controls.list.len() >= RULES_MAX {
            return Ok(Err(Refusal::Senseless(format!("there are {RULES_MAX} rules; lift some first"))));
        }
        for old in replaced {
            self.delete_rule(&old.rule).await?;
        }
        run!(
            self,
            "INSERT INTO redrive.rule (rule, since, until, who, why) VALUES ($1, $2, $3, $4, $5)",
            rule_text(&control.rule),
            from_moment(control.since),
            control.until.map(from_moment),
            &control.who,
            &control.why
        )?;
        (self.rules, self.recall) = (None, true);
        Ok(Ok(()))
    }

    /// Whether events of one queue may be run by the handler of another.
    pub(super) async fn check_route(&mut self, queue: &str, to: &str) -> sqlx::Result<Result<(), Refusal>> {
        let (from, into) = (self.spec(queue).await?, self.spec(to).await?);
        let (Some(from), Some(into)) = (&from, &into) else {
            let missing = if from.is_none() { queue } else { to };
            return Ok(Err(Refusal::NoQueue { queue: missing.to_owned() }));
        };
        Ok(check_route((queue, from.pull), (to, into.pull)))
    }

    /// A rule does not hold any more. `false` where it did not before.
    pub(super) async fn lift_rule(&mut self, rule: &Rule) -> Step<bool> {
        if !self.delete_rule(rule).await? {
            return Ok(false);
        }
        (self.rules, self.recall) = (None, true);
        if let Some((queue, tenant, key)) = rule.key()
            && let Some(stream) = self.find_stream(queue, tenant).await?
        {
            self.go_on(&stream, key, redrive_core::entry::Seq(0)).await?;
        }
        Ok(true)
    }

    async fn delete_rule(&mut self, rule: &Rule) -> sqlx::Result<bool> {
        Ok(run!(self, "DELETE FROM redrive.rule WHERE rule = $1", rule_text(rule))? == 1)
    }
}
