//! Why an event does not run just now: one answer, the first that holds.
//!
//! The order is that of the engine: an earlier event of its key, then rules of operators, then its time, then what guards
//! the receiver. An event that is running, dead or has ended waits for nothing.

use redrive::Moment;
use redrive::breaker::BreakerState;
use redrive::desk::{ActiveRule, Rule};
use redrive::event::State;
use serde_json::{Value, json};

use super::super::wire;

/// What is known of an event and its queue.
#[derive(Debug, Clone, Default)]
pub(super) struct Facts<'a> {
    pub(super) queue: &'a str,
    pub(super) tenant: &'a str,
    pub(super) key: Option<&'a str>,
    pub(super) state: Option<State>,
    pub(super) due: Option<Moment>,
    pub(super) attempts: u32,
    /// The first open event of its key, if that is another one, and whether it is dead.
    pub(super) head: Option<(&'a str, bool)>,
    pub(super) rules: &'a [ActiveRule],
    pub(super) breaker: Option<BreakerState>,
    /// Retries that the budget allows.
    pub(super) budget: Option<u64>,
    /// Whether workers lease its events.
    pub(super) is_pulled: bool,
}

/// What an event waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hold {
    /// `dead-letter`, `key`, a kind of rule, `due`, `breaker`, `budget`, `worker` or `room`.
    pub(super) by: &'static str,
    /// The event, key, tenant or queue that holds it.
    pub(super) of: String,
    pub(super) until: Option<Moment>,
    /// The same as a sentence.
    pub(super) text: String,
}

impl Hold {
    /// As JSON.
    pub(super) fn json(&self) -> Value {
        let mut view = json!({ "by": self.by, "of": self.of, "text": self.text });
        if let Some(until) = self.until {
            view["until"] = wire::moment(until).into();
        }
        view
    }
}

/// Why it waits; nothing if it does not.
pub(super) fn why(facts: &Facts<'_>, now: Moment) -> Option<Hold> {
    let state = facts.state?;
    if !matches!(state, State::Waiting | State::Ready | State::Parked | State::Quarantined) {
        return None;
    }
    behind_head(facts)
        .or_else(|| {
            facts
                .rules
                .iter()
                .filter(|rule| holds(facts, &rule.rule))
                .min_by_key(|rule| rank(&rule.rule))
                .map(ruled)
        })
        .or_else(|| not_due(facts, now))
        .or_else(|| guarded(facts))
        .or_else(|| Some(ready(facts)))
}

fn behind_head(facts: &Facts<'_>) -> Option<Hold> {
    let (head, is_dead) = facts.head?;
    let (by, text) = if is_dead {
        ("dead-letter", format!("Parked behind the dead letter {head}, the head of its key."))
    } else {
        ("key", format!("Waits for {head}, an earlier event of its key."))
    };
    Some(Hold { by, of: head.to_owned(), until: None, text })
}

/// Whether a rule holds this event back.
fn holds(facts: &Facts<'_>, rule: &Rule) -> bool {
    match rule {
        Rule::Pause { queue } => queue == facts.queue,
        Rule::PauseRetries { queue } => queue == facts.queue && facts.attempts > 0,
        Rule::QuarantineTenant { queue, tenant } => {
            tenant == facts.tenant && queue.as_deref().is_none_or(|queue| queue == facts.queue)
        }
        Rule::QuarantineKey { queue, tenant, key } | Rule::ParkKey { queue, tenant, key } => {
            queue == facts.queue && tenant == facts.tenant && Some(key.as_str()) == facts.key
        }
        Rule::Reroute { .. } => false,
    }
}

/// Of several rules, the narrowest is told.
const fn rank(rule: &Rule) -> u8 {
    match rule {
        Rule::ParkKey { .. } => 0,
        Rule::QuarantineKey { .. } => 1,
        Rule::QuarantineTenant { .. } => 2,
        Rule::Pause { .. } => 3,
        Rule::PauseRetries { .. } => 4,
        Rule::Reroute { .. } => 5,
    }
}

fn ruled(active: &ActiveRule) -> Hold {
    let (what, of) = match &active.rule {
        Rule::ParkKey { key, .. } => (format!("Its key {key} is parked"), key),
        Rule::QuarantineKey { key, .. } => (format!("Its key {key} is quarantined"), key),
        Rule::QuarantineTenant { tenant, .. } => (format!("Its tenant {tenant} is quarantined"), tenant),
        Rule::PauseRetries { queue } => (format!("Retries of the queue {queue} are paused"), queue),
        Rule::Pause { queue } | Rule::Reroute { queue, .. } => {
            (format!("The queue {queue} is paused"), queue)
        }
    };
    let why = if active.why.is_empty() { String::new() } else { format!(": {}", active.why) };
    let until = active.until.map_or(String::new(), |until| format!(" until {}", wire::moment(until)));
    let text = format!("{what} by {}{until}{why}.", active.who);
    Hold { by: active.rule.word(), of: of.clone(), until: active.until, text }
}

fn not_due(facts: &Facts<'_>, now: Moment) -> Option<Hold> {
    let due = facts.due.filter(|due| *due > now)?;
    let text = match facts.attempts {
        0 => format!("It is due at {}.", wire::moment(due)),
        attempts => format!("Waits until {} for attempt {}.", wire::moment(due), attempts + 1),
    };
    Some(Hold { by: "due", of: facts.queue.to_owned(), until: Some(due), text })
}

fn guarded(facts: &Facts<'_>) -> Option<Hold> {
    let hold = |by, text| Some(Hold { by, of: facts.queue.to_owned(), until: None, text });
    match facts.breaker {
        Some(BreakerState::Open) => {
            return hold("breaker", format!("Waits for the breaker of {}, which is open.", facts.queue));
        }
        Some(BreakerState::HalfOpen) => {
            return hold(
                "breaker",
                format!("Waits for the breaker of {}, which lets a few through.", facts.queue),
            );
        }
        _ => {}
    }
    if facts.budget == Some(0) && facts.attempts > 0 {
        return hold("budget", format!("Waits for the retry budget of {}, which is spent.", facts.queue));
    }
    None
}

fn ready(facts: &Facts<'_>) -> Hold {
    let (by, text) = if facts.is_pulled {
        ("worker", "Ready: a worker has to lease it.")
    } else {
        ("room", "Ready: it starts as soon as there is room.")
    };
    Hold { by, of: facts.queue.to_owned(), until: None, text: text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(rule: Rule) -> ActiveRule {
        ActiveRule {
            rule,
            since: Moment::default(),
            until: None,
            who: "bo".to_owned(),
            why: "bank window".to_owned(),
        }
    }

    #[test]
    fn the_first_hold_is_told() {
        let now = Moment::from_nanos(1_000_000_000);
        let later = Some(Moment::from_nanos(2_000_000_000));
        let [queue, tenant, key] = ["orders", "acme", "k"].map(str::to_owned);
        let pause = [rule(Rule::Pause { queue: queue.clone() })];
        let retries = [rule(Rule::PauseRetries { queue: queue.clone() })];
        let parked = [
            pause[0].clone(),
            rule(Rule::ParkKey { queue: queue.clone(), tenant: tenant.clone(), key: key.clone() }),
        ];
        let of_tenant = [rule(Rule::QuarantineTenant { queue: None, tenant })];
        let of_key = [rule(Rule::QuarantineKey { queue, tenant: "acme".to_owned(), key })];
        let base = Facts {
            queue: "orders",
            tenant: "acme",
            key: Some("k"),
            state: Some(State::Waiting),
            attempts: 3,
            ..Facts::default()
        };
        let open = Some(BreakerState::Open);
        let cases = [
            ("dead-letter", Facts { head: Some(("a", true)), rules: &pause, ..base.clone() }),
            ("key", Facts { head: Some(("a", false)), due: later, ..base.clone() }),
            ("park-key", Facts { rules: &parked, ..base.clone() }),
            ("quarantine-key", Facts { rules: &of_key, ..base.clone() }),
            ("quarantine-tenant", Facts { rules: &of_tenant, due: later, ..base.clone() }),
            ("pause", Facts { rules: &pause, due: later, ..base.clone() }),
            ("pause-retries", Facts { rules: &retries, ..base.clone() }),
            ("due", Facts { due: later, breaker: open, ..base.clone() }),
            ("due", Facts { rules: &retries, attempts: 0, due: later, ..base.clone() }),
            ("breaker", Facts { breaker: open, budget: Some(0), ..base.clone() }),
            ("budget", Facts { breaker: Some(BreakerState::Closed), budget: Some(0), ..base.clone() }),
            ("room", Facts { budget: Some(0), attempts: 0, ..base.clone() }),
            ("worker", Facts { is_pulled: true, ..base.clone() }),
        ];
        for (by, facts) in cases {
            assert_eq!(why(&facts, now).expect("it waits").by, by, "{facts:?}");
        }
        let told = why(&Facts { rules: &pause, ..base.clone() }, now).expect("it waits").text;
        assert_eq!(told, "The queue orders is paused by bo: bank window.");
        for state in [State::Running, State::Dead, State::Done] {
            assert_eq!(why(&Facts { state: Some(state), ..base.clone() }, now), None);
        }
    }
}
