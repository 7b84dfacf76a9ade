//! The active rules, and their effect on one event.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use redrive_core::Moment;
use redrive_core::event::State;
use redrive_core::triage::{ActiveRule, ActiveRules, Rule};

use super::cells::{Cells, Damage};
use super::numbers::to_moment;
use super::rows::{EventRow, Stream};
use crate::event_status::EventStatus;

/// How many rules may be active: every load of the engine checks them.
pub(in crate::stores) const RULES_MAX: usize = 10_000;

/// The active rules.
#[derive(Debug)]
pub(in crate::stores) struct Rules {
    pub(in crate::stores) controls: ActiveRules,
    /// Keys that may be withheld.
    keys: HashSet<String>,
}

/// The context of a read: time and rules.
#[derive(Debug)]
pub(in crate::stores) struct View {
    pub(in crate::stores) now: Moment,
    pub(in crate::stores) rules: Arc<Rules>,
}

impl View {
    /// Whether a tenant's part of a queue is in quarantine.
    pub(in crate::stores) fn is_quarantined(&self, stream: &Stream) -> bool {
        let controls = &self.rules.controls;
        !controls.list.is_empty() && controls.is_quarantined(&stream.queue, &stream.tenant, self.now)
    }

    /// An event that may run and never ran.
    pub(in crate::stores) fn ready(&self, row: &EventRow, stream: &Stream) -> EventStatus {
        let state = if self.is_quarantined(stream) { State::Quarantined } else { State::Ready };
        EventStatus {
            due: Some(row.event.when.moment(row.published)),
            ..EventStatus::new(row.seq, state, row.published)
        }
    }
}

impl Rules {
    /// These rules, sorted.
    pub(in crate::stores) fn new(mut controls: ActiveRules) -> Self {
        controls.list.sort_by(|a, b| a.rule.cmp(&b.rule));
        let keys = controls.list.iter().filter_map(|control| control.rule.key());
        let keys = keys.map(|(_, _, key)| key.to_owned()).collect();
        Self { controls, keys }
    }

    /// The rule that withholds a key. It holds until it is lifted, and not until its expiry, so that its end is a
    /// commit.
    pub(in crate::stores) fn withholding(&self, stream: &Stream, key: &str) -> Option<&Rule> {
        if self.keys.is_empty() || !self.keys.contains(key) {
            return None;
        }
        let named = (stream.queue.as_str(), stream.tenant.as_str(), key);
        self.controls.list.iter().map(|control| &control.rule).find(|rule| rule.key() == Some(named))
    }
}

/// A rule from a row: rule, since, until, who, why. An unreadable rule is returned as text.
pub(in crate::stores) fn read_rule(row: &impl Cells) -> Result<Result<ActiveRule, String>, Damage> {
    let text = row.text(0)?;
    let Ok(rule) = serde_json::from_str(&text) else { return Ok(Err(text)) };
    let until = row.maybe_number(2)?.map(to_moment);
    let (since, who, why) = (to_moment(row.number(1)?), row.text(3)?, row.text(4)?);
    Ok(Ok(ActiveRule { rule, since, until, who, why }))
}

/// A rule as it is stored.
pub(in crate::stores) fn rule_text(rule: &Rule) -> String {
    // Words alone: this does not fail.
    serde_json::to_string(rule).unwrap_or_default()
}

/// The state of the events of a key that a rule withholds.
pub(in crate::stores) const fn state_under(rule: &Rule) -> State {
    if matches!(rule, Rule::ParkKey { .. }) { State::Parked } else { State::Quarantined }
}

/// The queues that a rule names.
pub(in crate::stores) fn queues(rule: &Rule) -> Vec<&str> {
    match rule {
        Rule::Pause { queue }
        | Rule::PauseRetries { queue }
        | Rule::QuarantineKey { queue, .. }
        | Rule::ParkKey { queue, .. }
        | Rule::QuarantineTenant { queue: Some(queue), .. } => vec![queue],
        Rule::QuarantineTenant { queue: None, .. } => vec![],
        Rule::Reroute { queue, to } => vec![queue, to],
    }
}

/// The latest moment that a caller passed in: events that are due by then may run. The store has no clock of its own.
#[derive(Debug, Default)]
pub(in crate::stores) struct StoreClock(AtomicU64);

impl StoreClock {
    pub(in crate::stores) fn advance(&self, at: Moment) {
        self.0.fetch_max(at.as_nanos(), Relaxed);
    }

    pub(in crate::stores) fn now(&self) -> Moment {
        Moment::from_nanos(self.0.load(Relaxed))
    }
}
