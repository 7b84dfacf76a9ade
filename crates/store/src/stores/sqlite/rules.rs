//! Rules that hold, as an operator made them.
//!
//! Those over a key are the store's own: the head of such a key is *withheld*, which is a state of its row, so that
//! no load has to ask for rules. The writer remembers all rules, and asks only for events that have a key, and only
//! if there is a rule over some key.

use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::triage::{Control, Controls, Rule};
use rusqlite::{Connection, params};

use super::desk::Desk;
use super::faults::{Step, damaged};
use super::held::Stand;
use super::names::find_stream;
use super::numbers::{bits, from_moment};
use super::rows::{Damage, Stream};
use crate::operate::{Refusal, check_route};
use crate::stores::shared::rules::{RULES_MAX, queues, read_rule, rule_text};
pub(super) use crate::stores::shared::rules::{Rules, View, held_by};

impl View {
    /// A view of what is in the transaction that is open.
    pub(super) fn of(conn: &Connection, now: Moment) -> rusqlite::Result<Self> {
        Ok(Self { now, rules: Arc::new(Rules::read(conn)?) })
    }
}

impl Rules {
    /// The rules in the file. One that nobody can read holds nothing; [`controls`] names it.
    pub(super) fn read(conn: &Connection) -> rusqlite::Result<Self> {
        read(conn).map(|(controls, _)| Self::new(controls))
    }
}

/// The rules that hold.
pub(super) fn controls(conn: &Connection) -> Step<Controls> {
    match read(conn)? {
        (_, Some(rule)) => Err(damaged("redrive_rule", rule).into()),
        (controls, None) => Ok(controls),
    }
}

fn read(conn: &Connection) -> rusqlite::Result<(Controls, Option<String>)> {
    let version =
        conn.prepare_cached("SELECT orders FROM redrive_meta")?.query_row([], |row| row.get(0).map(bits))?;
    let mut controls = Controls { version, list: Vec::new() };
    let mut wrong = None;
    let mut select = conn.prepare_cached("SELECT rule, since, until, who, why FROM redrive_rule")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        match read_rule(row) {
            Ok(Ok(control)) => controls.list.push(control),
            Ok(Err(text)) => wrong = Some(text),
            Err(Damage) => wrong = Some(String::new()),
        }
    }
    controls.list.sort_by(|a, b| a.rule.cmp(&b.rule));
    Ok((controls, wrong))
}

impl Desk {
    /// The rules that hold.
    pub(super) fn rules(&mut self) -> rusqlite::Result<&Arc<Rules>> {
        let rules = match self.rules.take() {
            Some(rules) => rules,
            None => Arc::new(Rules::read(&self.conn)?),
        };
        Ok(self.rules.insert(rules))
    }

    /// What an order looks with.
    pub(super) fn view(&mut self) -> rusqlite::Result<View> {
        Ok(View { now: self.seen.now(), rules: Arc::clone(self.rules()?) })
    }

    /// Where the head of a key is to be: it waits, or is withheld by a rule.
    pub(super) fn head_stand(&mut self, stream: &Stream, key: &str) -> rusqlite::Result<Stand> {
        let is_withheld = self.rules()?.withholding(stream, key).is_some();
        Ok(if is_withheld { Stand::Withheld } else { Stand::Waits })
    }

    /// A rule holds from now on.
    pub(super) fn set_rule(&mut self, control: &Control) -> Step<Result<(), Refusal>> {
        if control.until.is_some_and(|until| until <= control.since) {
            return Ok(Err(Refusal::Senseless("its end is over already".to_owned())));
        }
        for queue in queues(&control.rule) {
            if self.spec(queue)?.is_none() {
                return Ok(Err(Refusal::NoQueue { queue: queue.to_owned() }));
            }
        }
        if let Some((queue, ..)) = control.rule.key()
            && self.spec(queue)?.is_some_and(|queue| !queue.ordered)
        {
            let what =
                format!("the queue {queue} keeps no order of keys, so a key of it cannot be held back");
            return Ok(Err(Refusal::Senseless(what)));
        }
        if let Rule::Reroute { queue, to } = &control.rule
            && let Err(refusal) = self.check_route(queue, to)?
        {
            return Ok(Err(refusal));
        }
        let had = Arc::clone(self.rules()?);
        let replaced: Vec<_> =
            had.controls.list.iter().filter(|old| control.rule.replaces(&old.rule)).collect();
        if replaced.is_empty() && had.controls.list.len() >= RULES_MAX {
            return Ok(Err(Refusal::Senseless(format!("there are {RULES_MAX} rules; lift some first"))));
        }
        for old in replaced {
            self.delete_rule(&old.rule)?;
        }
        self.conn
            .prepare_cached(
                "INSERT INTO redrive_rule (rule, since, until, who, why) VALUES (?1, ?2, ?3, ?4, ?5)",
            )?
            .execute(params![
                rule_text(&control.rule),
                from_moment(control.since),
                control.until.map(from_moment),
                control.who,
                control.why
            ])?;
        (self.rules, self.recall) = (None, true);
        if let Some((queue, tenant, key)) = control.rule.key()
            && let Some(id) = find_stream(&self.conn, queue, tenant)?
            && let Some(stream) = self.names.of(&self.conn, id)?
        {
            self.push_back(&stream, key, None, Stand::Withheld)?;
        }
        Ok(Ok(()))
    }

    /// Whether events of one queue may be run by the handler of another.
    pub(super) fn check_route(&mut self, queue: &str, to: &str) -> rusqlite::Result<Result<(), Refusal>> {
        let (Some(from), Some(into)) = (self.spec(queue)?, self.spec(to)?) else {
            let missing = if self.spec(queue)?.is_none() { queue } else { to };
            return Ok(Err(Refusal::NoQueue { queue: missing.to_owned() }));
        };
        Ok(check_route((queue, from.pull), (to, into.pull)))
    }

    /// A rule does not hold any more. `false` where it did not before.
    pub(super) fn lift_rule(&mut self, rule: &Rule) -> Step<bool> {
        if !self.delete_rule(rule)? {
            return Ok(false);
        }
        (self.rules, self.recall) = (None, true);
        if let Some((queue, tenant, key)) = rule.key()
            && let Some(id) = find_stream(&self.conn, queue, tenant)?
            && let Some(stream) = self.names.of(&self.conn, id)?
        {
            self.hand_out(&stream, key)?;
        }
        Ok(true)
    }

    fn delete_rule(&self, rule: &Rule) -> rusqlite::Result<bool> {
        let deleted = self
            .conn
            .prepare_cached("DELETE FROM redrive_rule WHERE rule = ?1")?
            .execute([rule_text(rule)])?;
        Ok(deleted == 1)
    }

    /// The rules whose time is over.
    pub(super) fn ended_rules(&mut self, now: Moment) -> rusqlite::Result<Vec<Rule>> {
        let rules = self.rules()?;
        let is_over = |control: &&Control| control.until.is_some_and(|until| until <= now);
        Ok(rules.controls.list.iter().filter(is_over).map(|control| control.rule.clone()).collect())
    }
}
