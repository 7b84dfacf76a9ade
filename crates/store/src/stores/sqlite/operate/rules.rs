//! The active rules, as operators set them.
//!
//! The store applies rules over a key itself: the head of such a key is *withheld*, which is a state of its row, so
//! that no load has to check rules. The writer caches all rules, and checks them only for events that have a key, and
//! only if there is a rule over some key.

use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::triage::{ActiveRule, ActiveRules, Rule};
use rusqlite::{Connection, params};

use crate::stores::shared::numbers::{bits, from_moment};
pub(in crate::stores::sqlite) use crate::stores::shared::rules::{Rules, View, state_under};
use crate::stores::shared::rules::{read_rule, rule_text};
use crate::stores::sqlite::events::fresh::{Damage, Stream};
use crate::stores::sqlite::events::tracked::RowState;
use crate::stores::sqlite::faults::{Step, damaged};
use crate::stores::sqlite::writer::tx::WriterTx;

impl View {
    /// The context of reads in the open transaction.
    pub(in crate::stores::sqlite) fn of(conn: &Connection, now: Moment) -> rusqlite::Result<Self> {
        Ok(Self { now, rules: Arc::new(Rules::read(conn)?) })
    }
}

impl Rules {
    /// The rules in the file. An unreadable rule holds nothing; [`controls`] reports it.
    pub(in crate::stores::sqlite) fn read(conn: &Connection) -> rusqlite::Result<Self> {
        read(conn).map(|(controls, _)| Self::new(controls))
    }
}

/// The active rules.
pub(in crate::stores::sqlite) fn controls(conn: &Connection) -> Step<ActiveRules> {
    match read(conn)? {
        (_, Some(rule)) => Err(damaged("redrive_rule", rule).into()),
        (controls, None) => Ok(controls),
    }
}

fn read(conn: &Connection) -> rusqlite::Result<(ActiveRules, Option<String>)> {
    let version =
        conn.prepare_cached("SELECT orders FROM redrive_meta")?.query_row([], |row| row.get(0).map(bits))?;
    let mut controls = ActiveRules { version, list: Vec::new() };
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

impl WriterTx {
    /// The active rules.
    pub(in crate::stores::sqlite) fn rules(&mut self) -> rusqlite::Result<&Arc<Rules>> {
        let rules = match self.rules.take() {
            Some(rules) => rules,
            None => Arc::new(Rules::read(&self.conn)?),
        };
        Ok(self.rules.insert(rules))
    }

    /// The context of a command's reads.
    pub(in crate::stores::sqlite) fn view(&mut self) -> rusqlite::Result<View> {
        Ok(View { now: self.clock.now(), rules: Arc::clone(self.rules()?) })
    }

    /// The state of the head of a key: it waits, or a rule withholds it.
    pub(in crate::stores::sqlite) fn head_state(
        &mut self,
        stream: &Stream,
        key: &str,
    ) -> rusqlite::Result<RowState> {
        let is_withheld = self.rules()?.withholding(stream, key).is_some();
        Ok(if is_withheld { RowState::Withheld } else { RowState::Waiting })
    }

    /// Inserts a rule.
    pub(in crate::stores::sqlite) fn insert_rule(&self, control: &ActiveRule) -> rusqlite::Result<()> {
        let (since, until) = (from_moment(control.since), control.until.map(from_moment));
        self.conn
            .prepare_cached(
                "INSERT INTO redrive_rule (rule, since, until, who, why) VALUES (?1, ?2, ?3, ?4, ?5)",
            )?
            .execute(params![rule_text(&control.rule), since, until, control.who, control.why])
            .map(drop)
    }

    /// Deletes a rule. `false` if there was none.
    pub(in crate::stores::sqlite) fn delete_rule(&self, rule: &Rule) -> rusqlite::Result<bool> {
        let mut delete = self.conn.prepare_cached("DELETE FROM redrive_rule WHERE rule = ?1")?;
        Ok(delete.execute([rule_text(rule)])? == 1)
    }
}
