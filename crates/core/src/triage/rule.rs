//! Rules that hold events back or reroute them.
//!
//! Rules are durable, and each may have an end. The scheduler applies rules about a queue or a tenant: it
//! neither loads nor starts the events that they hold back. The store applies rules about a key: it does not
//! return the first event of such a key, because otherwise the owner's memory would fill with events that may
//! not run.

use crate::event::bounds;
use crate::moment::Moment;

/// Holds events back or reroutes them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Rule {
    /// Holds back all events of a queue.
    Pause {
        /// The queue.
        queue: String,
    },
    /// Holds back the retries of a queue.
    PauseRetries {
        /// The queue.
        queue: String,
    },
    /// Holds back all events of a tenant.
    QuarantineTenant {
        /// The queue; `None` for all queues.
        queue: Option<String>,
        /// The tenant.
        tenant: String,
    },
    /// Holds back all events of a key; their state is `quarantined`.
    QuarantineKey {
        /// The queue.
        queue: String,
        /// The tenant.
        tenant: String,
        /// The ordering key.
        key: String,
    },
    /// Holds back all events of a key; their state is `parked`.
    ParkKey {
        /// The queue.
        queue: String,
        /// The tenant.
        tenant: String,
        /// The ordering key.
        key: String,
    },
    /// The handler of another queue runs the events of a queue. Identity, order and dedupe record stay where
    /// they are.
    Reroute {
        /// The queue.
        queue: String,
        /// The queue whose handler runs them.
        to: String,
    },
}

impl Rule {
    /// Checks that names are within their limits, and that a queue is not rerouted to itself.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        let tenant = |tenant: &str| check_name("a tenant", tenant, bounds::TENANT_BYTES_MAX);
        match self {
            Self::Pause { .. } | Self::PauseRetries { .. } => Ok(()),
            Self::QuarantineTenant { tenant: name, .. } => tenant(name),
            Self::QuarantineKey { tenant: name, key, .. } | Self::ParkKey { tenant: name, key, .. } => {
                tenant(name)?;
                check_name("a key", key, bounds::KEY_BYTES_MAX)
            }
            Self::Reroute { queue, to } if queue == to => {
                Err(format!("the queue {queue} already has its own handler; name another queue"))
            }
            Self::Reroute { .. } => Ok(()),
        }
    }

    /// The word in the audit log.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Pause { .. } => "pause",
            Self::PauseRetries { .. } => "pause-retries",
            Self::QuarantineTenant { .. } => "quarantine-tenant",
            Self::QuarantineKey { .. } => "quarantine-key",
            Self::ParkKey { .. } => "park-key",
            Self::Reroute { .. } => "reroute",
        }
    }

    /// What it applies to, in words.
    #[must_use]
    pub fn target(&self) -> String {
        let of_key = |queue, tenant: &str, key| match tenant {
            "" => format!("queue {queue}, key {key}"),
            tenant => format!("queue {queue}, tenant {tenant}, key {key}"),
        };
        match self {
            Self::Pause { queue } | Self::PauseRetries { queue } => format!("queue {queue}"),
            Self::QuarantineTenant { queue: None, tenant } => format!("tenant {tenant}"),
            Self::QuarantineTenant { queue: Some(queue), tenant } => {
                format!("queue {queue}, tenant {tenant}")
            }
            Self::QuarantineKey { queue, tenant, key } | Self::ParkKey { queue, tenant, key } => {
                of_key(queue, tenant, key)
            }
            Self::Reroute { queue, to } => format!("queue {queue} to {to}"),
        }
    }

    /// Whether the two exclude each other: a queue is rerouted to one other queue.
    #[must_use]
    pub fn replaces(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Reroute { queue, .. }, Self::Reroute { queue: other, .. }) => queue == other,
            _ => self == other,
        }
    }

    /// The key that it applies to: queue, tenant, key.
    #[must_use]
    pub fn key(&self) -> Option<(&str, &str, &str)> {
        match self {
            Self::QuarantineKey { queue, tenant, key } | Self::ParkKey { queue, tenant, key } => {
                Some((queue, tenant, key))
            }
            _ => None,
        }
    }
}

/// The most bytes of a reason.
const WHY_BYTES_MAX: usize = 512;

/// Checks that a text can be kept as a reason: short, and without control characters.
///
/// # Errors
/// What is wrong with it.
pub fn check_words(why: &str) -> Result<(), String> {
    check_name("a reason", why, WHY_BYTES_MAX)
}

fn check_name(what: &str, name: &str, bytes_max: usize) -> Result<(), String> {
    if name.len() > bytes_max {
        return Err(format!("{what} has {} bytes; the limit is {bytes_max}", name.len()));
    }
    if name.chars().any(char::is_control) {
        return Err(format!("{what} contains control characters"));
    }
    Ok(())
}

/// A rule in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActiveRule {
    /// The rule.
    pub rule: Rule,
    /// Since when it applies.
    pub since: Moment,
    /// Until when it applies; `None`: until an operator lifts it.
    pub until: Option<Moment>,
    /// The operator who made it.
    pub who: String,
    /// The reason.
    pub why: String,
}

/// All rules in force.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ActiveRules {
    /// Grows with every command that may have taken an event from its owner.
    pub version: u64,
    /// The rules.
    pub list: Vec<ActiveRule>,
}

impl ActiveRules {
    fn hold(&self, now: Moment, is_meant: impl Fn(&Rule) -> bool) -> bool {
        self.now(now).any(is_meant)
    }

    pub(crate) fn now(&self, now: Moment) -> impl Iterator<Item = &Rule> {
        let holds = move |control: &&ActiveRule| control.until.is_none_or(|until| until > now);
        self.list.iter().filter(holds).map(|control| &control.rule)
    }

    /// Whether rules hold back this part of a queue: its first attempts, or its retries.
    #[must_use]
    pub fn is_closed(&self, queue: &str, tenant: &str, has_run: bool, now: Moment) -> bool {
        self.hold(now, |rule| match rule {
            Rule::Pause { queue: paused } => paused == queue,
            Rule::PauseRetries { queue: paused } => has_run && paused == queue,
            Rule::QuarantineTenant { .. } => quarantines(rule, queue, tenant),
            _ => false,
        })
    }

    /// Whether a tenant's part of a queue is quarantined.
    #[must_use]
    pub fn is_quarantined(&self, queue: &str, tenant: &str, now: Moment) -> bool {
        self.hold(now, |rule| quarantines(rule, queue, tenant))
    }

    /// The rule that holds back the first event of a key.
    #[must_use]
    pub fn withholding(&self, queue: &str, tenant: &str, key: &str, now: Moment) -> Option<&Rule> {
        self.now(now).find(|rule| rule.key() == Some((queue, tenant, key)))
    }

    /// The queue whose handler runs the events of this one, if it is rerouted.
    #[must_use]
    pub fn route(&self, queue: &str, now: Moment) -> Option<&str> {
        self.now(now).find_map(|rule| match rule {
            Rule::Reroute { queue: from, to } if from == queue => Some(to.as_str()),
            _ => None,
        })
    }

    /// When the next rule ends.
    #[must_use]
    pub fn next_end(&self, now: Moment) -> Option<Moment> {
        self.list.iter().filter_map(|control| control.until).filter(|until| *until > now).min()
    }
}

fn quarantines(rule: &Rule, of_queue: &str, of_tenant: &str) -> bool {
    match rule {
        Rule::QuarantineTenant { queue, tenant } => {
            tenant == of_tenant && queue.as_deref().is_none_or(|queue| queue == of_queue)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn controls(rule: Rule, until: Option<Moment>) -> ActiveRules {
        let since = Moment::default();
        ActiveRules {
            version: 1,
            list: vec![ActiveRule { rule, since, until, who: String::new(), why: String::new() }],
        }
    }

    #[test]
    fn a_rule_holds_what_it_names_until_its_end() {
        let (now, end) = (Moment::from_nanos(5), Moment::from_nanos(10));
        let pause = controls(Rule::PauseRetries { queue: "a".to_owned() }, Some(end));
        assert!(pause.is_closed("a", "", true, now) && !pause.is_closed("a", "", false, now));
        assert!(!pause.is_closed("b", "", true, now) && !pause.is_closed("a", "", true, end));
        assert_eq!(pause.next_end(now), Some(end));
        assert_eq!(pause.next_end(end), None);

        let tenant = controls(Rule::QuarantineTenant { queue: None, tenant: "t".to_owned() }, None);
        assert!(tenant.is_closed("a", "t", false, now) && tenant.is_quarantined("b", "t", now));
        assert!(!tenant.is_closed("a", "u", false, now));
    }

    #[test]
    fn a_queue_goes_to_one_place() {
        let to = |to: &str| Rule::Reroute { queue: "a".to_owned(), to: to.to_owned() };
        assert!(to("b").replaces(&to("c")));
        assert_eq!(controls(to("b"), None).route("a", Moment::default()), Some("b"));
        assert!(!Rule::Pause { queue: "a".to_owned() }.replaces(&to("b")));
    }
}
