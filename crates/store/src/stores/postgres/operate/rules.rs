//! The active rules, as operators set them.
//!
//! The store itself applies rules over a key: each statement that hands out the head of a key checks whether a rule
//! withholds it. There are few rules, and the same transaction reads them.

use std::sync::Arc;

use redrive_core::triage::{ActiveRule, ActiveRules, Rule};
use sqlx::Row;

use crate::stores::postgres::events::fresh::{Damage, Stream};
use crate::stores::postgres::faults::{Step, damaged};
use crate::stores::postgres::tx::{PgTx, rows, run};
use crate::stores::shared::numbers::{bits, from_moment};
pub(in crate::stores::postgres) use crate::stores::shared::rules::{Rules, View, state_under};
use crate::stores::shared::rules::{read_rule, rule_text};

impl PgTx<'_> {
    /// The active rules, and an unreadable one, if there is one.
    async fn read_rules(&mut self) -> Step<(ActiveRules, Option<String>)> {
        let found = rows!(
            self,
            "SELECT rule, since, until, who, why, orders FROM redrive.meta LEFT JOIN redrive.rule ON true"
        )?;
        let mut controls = ActiveRules { version: 0, list: Vec::new() };
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

    /// The active rules, for a caller.
    pub(in crate::stores::postgres) async fn controls(&mut self) -> Step<ActiveRules> {
        match self.read_rules().await? {
            (_, Some(rule)) => Err(damaged("rule", rule).into()),
            (controls, None) => Ok(Rules::new(controls).controls),
        }
    }

    /// The active rules. An unreadable rule holds nothing.
    pub(in crate::stores::postgres) async fn rules(&mut self) -> Step<Arc<Rules>> {
        if let Some(rules) = &self.rules {
            return Ok(Arc::clone(rules));
        }
        let rules = Arc::new(Rules::new(self.read_rules().await?.0));
        self.rules = Some(Arc::clone(&rules));
        Ok(rules)
    }

    /// The context of a read: time and rules.
    pub(in crate::stores::postgres) async fn view(&mut self) -> Step<View> {
        Ok(View { now: self.db.clock.now(), rules: self.rules().await? })
    }

    /// Whether a rule withholds a key.
    pub(in crate::stores::postgres) async fn is_withheld(
        &mut self,
        stream: &Stream,
        key: &str,
    ) -> Step<bool> {
        Ok(self.rules().await?.withholding(stream, key).is_some())
    }

    /// The keys of a stream that rules withhold.
    pub(in crate::stores::postgres) async fn withheld(&mut self, stream: &Stream) -> Step<Vec<String>> {
        let rules = self.rules().await?;
        let keys = rules.controls.list.iter().filter_map(|control| control.rule.key());
        let own = keys.filter(|(queue, tenant, _)| stream.queue == *queue && stream.tenant == *tenant);
        Ok(own.map(|(_, _, key)| key.to_owned()).collect())
    }

    /// Inserts a rule.
    pub(in crate::stores::postgres) async fn insert_rule(
        &mut self,
        control: &ActiveRule,
    ) -> sqlx::Result<()> {
        run!(
            self,
            "INSERT INTO redrive.rule (rule, since, until, who, why) VALUES ($1, $2, $3, $4, $5)",
            rule_text(&control.rule),
            from_moment(control.since),
            control.until.map(from_moment),
            &control.who,
            &control.why
        )
        .map(drop)
    }

    /// Deletes a rule. `false` if there was none.
    pub(in crate::stores::postgres) async fn delete_rule(&mut self, rule: &Rule) -> sqlx::Result<bool> {
        Ok(run!(self, "DELETE FROM redrive.rule WHERE rule = $1", rule_text(rule))? == 1)
    }
}
