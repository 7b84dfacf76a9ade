//! What is held back, and what goes elsewhere.
//!
//! Rules are durable, and each may have an end. Those over a queue or a tenant are the scheduler's: it starts and
//! loads nothing of what they hold. Those over a key are the store's, which hands out no head of such a key:
//! otherwise the memory of the owner would fill with what may not run.

use crate::event::bounds;
use crate::moment::Moment;

/// What is held back, or goes elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Rule {
    /// Nothing of a queue starts.
    Pause {
        /// Which queue.
        queue: String,
    },
    /// Nothing of a queue starts that ran before.
    PauseRetries {
        /// Which queue.
        queue: String,
    },
    /// Nothing of a tenant starts.
    QuarantineTenant {
        /// Of which queue; of all where it is none.
        queue: Option<String>,
        /// Which tenant.
        tenant: String,
    },
    /// Nothing of a key starts; its events say `quarantined`.
    QuarantineKey {
        /// Of which queue.
        queue: String,
        /// Of which tenant.
        tenant: String,
        /// Which key.
        key: String,
    },
    /// Nothing of a key starts; its events say `parked`.
    ParkKey {
        /// Of which queue.
        queue: String,
        /// Of which tenant.
        tenant: String,
        /// Which key.
        key: String,
    },
    /// Events of a queue are run by the handler of another one. Identity, order and receipt stay where they are.
    Reroute {
        /// Which queue.
        queue: String,
        /// Whose handler.
        to: String,
    },
}

impl Rule {
    /// Whether it can be meant: names within their bounds, and nothing sent to where it is.
    ///
    /// # Errors
    /// With what is wrong with it.
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
                Err(format!("the queue {queue} is run by its own handler already"))
            }
            Self::Reroute { .. } => Ok(()),
        }
    }

    /// The word in the audit.
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

    /// What it is about, in words.
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

    /// Whether there can be only one of both: a queue goes to one place.
    #[must_use]
    pub fn replaces(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Reroute { queue, .. }, Self::Reroute { queue: other, .. }) => queue == other,
            _ => self == other,
        }
    }

    /// The key that it is about: queue, tenant, key.
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

/// How many bytes of text say why.
const WHY_BYTES_MAX: usize = 512;

/// Whether a text can be kept as a reason: short, and without letters that cannot be shown.
///
/// # Errors
/// With what is wrong with it.
pub fn check_words(why: &str) -> Result<(), String> {
    check_name("a reason", why, WHY_BYTES_MAX)
}

fn check_name(what: &str, name: &str, bytes_max: usize) -> Result<(), String> {
    if name.len() > bytes_max {
        return Err(format!("{what} has {} bytes, and at most {bytes_max} are allowed", name.len()));
    }
    if name.chars().any(char::is_control) {
        return Err(format!("{what} has letters that cannot be shown"));
    }
    Ok(())
}

/// A rule that holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Control {
    /// What it says.
    pub rule: Rule,
    /// Since when.
    pub since: Moment,
    /// Until when; until somebody lifts it where it is none.
    pub until: Option<Moment>,
    /// Who made it.
    pub who: String,
    /// Why, in words.
    pub why: String,
}

/// All rules that hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Controls {
    /// Grows with every order that may have taken something out of the owner's hands.
    pub version: u64,
    /// The rules.
    pub list: Vec<Control>,
}

impl Controls {
    fn hold(&self, now: Moment, is_meant: impl Fn(&Rule) -> bool) -> bool {
        self.now(now).any(is_meant)
    }

    pub(crate) fn now(&self, now: Moment) -> impl Iterator<Item = &Rule> {
        let holds = move |control: &&Control| control.until.is_none_or(|until| until > now);
        self.list.iter().filter(holds).map(|control| &control.rule)
    }

    /// Whether nothing of this part of a queue may start: of what never ran, or of the rest.
    #[must_use]
    pub fn is_closed(&self, queue: &str, tenant: &str, has_run: bool, now: Moment) -> bool {
        self.hold(now, |rule| match rule {
            Rule::Pause { queue: paused } => paused == queue,
            Rule::PauseRetries { queue: paused } => has_run && paused == queue,
            Rule::QuarantineTenant { .. } => quarantines(rule, queue, tenant),
            _ => false,
        })
    }

    /// Whether a tenant's part of a queue is in quarantine.
    #[must_use]
    pub fn is_quarantined(&self, queue: &str, tenant: &str, now: Moment) -> bool {
        self.hold(now, |rule| quarantines(rule, queue, tenant))
    }

    /// The rule by which the head of a key is not handed out.
    #[must_use]
    pub fn withholding(&self, queue: &str, tenant: &str, key: &str, now: Moment) -> Option<&Rule> {
        self.now(now).find(|rule| rule.key() == Some((queue, tenant, key)))
    }

    /// The queue whose handler runs the events of this one.
    #[must_use]
    pub fn route(&self, queue: &str, now: Moment) -> Option<&str> {
        self.now(now).find_map(|rule| match rule {
            Rule::Reroute { queue: from, to } if from == queue => Some(to.as_str()),
            _ => None,
        })
    }

    /// When a rule ends next.
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

    fn controls(rule: Rule, until: Option<Moment>) -> Controls {
        let since = Moment::default();
        Controls {
            version: 1,
            list: vec![Control { rule, since, until, who: String::new(), why: String::new() }],
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
