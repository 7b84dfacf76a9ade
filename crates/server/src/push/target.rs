//! What queues with a destination call, by name.
//!
//! A budget limits what all callers together add to a failing service, and a breaker detects the failure sooner the
//! more callers it sees. So queues that send to the same scheme, host and port share one budget and one breaker.
//! `policy.name` overrides that: queues of one name share, wherever they send to, and a unique name means a budget of
//! its own.
//!
//! A queue that shares with no other is its own target under its own name, so a reload may change its URL. Who shares
//! with whom cannot change: budgets are created when the server starts.

use std::collections::BTreeMap;

use redrive::policy::{PolicyBuilder, PolicySettings};
use redrive::{Breaker, Budget, PolicyError};

use super::destination::Destination;
use crate::config::{Config, QueueSettings};

/// The target that a queue calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Its name, in metrics.
    pub name: String,
    /// The queues that call it.
    pub queues: Vec<String>,
}

impl Target {
    /// Whether several queues call it.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.queues.len() > 1
    }
}

/// What makes two queues share a target.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum TargetKey {
    Named(String),
    At(String),
}

/// What each queue with a destination calls, by the queue.
#[must_use]
pub fn targets(config: &Config) -> BTreeMap<String, Target> {
    let mut places: BTreeMap<TargetKey, Vec<&String>> = BTreeMap::new();
    for (name, queue) in &config.queues {
        if let Some(place) = place(queue) {
            places.entry(place).or_default().push(name);
        }
    }
    let mut targets = BTreeMap::new();
    for (place, queues) in places {
        let queues: Vec<String> = queues.into_iter().cloned().collect();
        let name = match (place, queues.as_slice()) {
            (TargetKey::Named(name), _) => name,
            (TargetKey::At(_), [queue]) => queue.clone(),
            (TargetKey::At(origin), _) => origin,
        };
        let target = Target { name, queues };
        targets.extend(target.queues.iter().map(|queue| (queue.clone(), target.clone())));
    }
    targets
}

/// The target of a queue; `None` for pull queues, and for invalid URLs, which are reported elsewhere.
fn place(queue: &QueueSettings) -> Option<TargetKey> {
    let destination = Destination::without_credentials(queue.push.as_ref()?).ok()?;
    Some(match given_name(&queue.policy) {
        Some(name) => TargetKey::Named(name.to_owned()),
        None => TargetKey::At(destination.url().origin().ascii_serialization()),
    })
}

/// A policy's name, if it has one.
#[must_use]
pub fn given_name(policy: &PolicySettings) -> Option<&str> {
    Some(policy.name.as_str()).filter(|name| !name.is_empty() && *name != PolicySettings::default().name)
}

/// Refuses queues that share a target but configure different budgets or breakers.
///
/// # Errors
/// With the two queues, and what to do.
pub fn check(config: &Config) -> Result<(), String> {
    for (name, target) in targets(config) {
        let first = target.queues.first().unwrap_or(&name);
        let (Some(one), Some(other)) = (config.queues.get(first), config.queues.get(&name)) else { continue };
        let what = if one.policy.budget != other.policy.budget {
            "budget"
        } else if one.policy.breaker != other.policy.breaker {
            "breaker"
        } else {
            continue;
        };
        let Target { name: place, .. } = &target;
        return Err(format!(
            "queues.{name}.policy.{what} differs from that of queues.{first}, but both send to {place}, which has one {what}; make them equal, or give each queue its own policy.name"
        ));
    }
    Ok(())
}

/// Shared budgets and breakers, by their queues.
#[derive(Debug, Default)]
pub struct SharedPolicies(BTreeMap<Vec<String>, (Option<Budget>, Option<Breaker>)>);

impl SharedPolicies {
    /// The policy of a queue, with the shared parts.
    ///
    /// # Errors
    /// With the invalid part.
    pub fn policy(
        &mut self,
        mut policy: PolicySettings,
        target: &Target,
    ) -> Result<PolicyBuilder, PolicyError> {
        target.name.clone_into(&mut policy.name);
        if !target.is_shared() {
            return Ok(policy.builder());
        }
        if !self.0.contains_key(&target.queues) {
            let budget = policy.budget.clone().map(Budget::new).transpose()?;
            let breaker = policy.breaker.clone().map(Breaker::new).transpose()?;
            self.0.insert(target.queues.clone(), (budget, breaker));
        }
        let (budget, breaker) = self.0.get(&target.queues).cloned().unwrap_or_default();
        let mut builder = policy.builder();
        if let Some(budget) = budget {
            builder = builder.budget(budget);
        }
        if let Some(breaker) = breaker {
            builder = builder.breaker(breaker);
        }
        Ok(builder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        toml::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    #[test]
    fn one_scheme_host_and_port_are_one_target() {
        let queue = |name: &str, url: &str| format!("queues.{name}.push.url = \"{url}\"\n");
        let text = [
            queue("a", "https://shop.example/a"),
            queue("b", "https://SHOP.example:443/b?x=1"),
            queue("c", "http://shop.example/"),
            queue("d", "https://shop.example:8443/"),
            queue("e", "https://bank.example/"),
            queue("f", "https://shop.example/f") + "queues.f.policy.name = \"hall\"\n",
            queue("g", "https://hall.example/") + "queues.g.policy.name = \"hall\"\n",
            "queues.h.pull = {}\nqueues.h.policy.name = \"hall\"\n".to_owned(),
        ];
        let named: Vec<_> = targets(&config(&text.concat()))
            .into_iter()
            .map(|(queue, target)| format!("{queue} {} {}", target.name, target.queues.concat()))
            .collect();
        let expected = [
            "a https://shop.example ab",
            "b https://shop.example ab",
            "c c c",
            "d d d",
            "e e e",
            "f hall fg",
            "g hall fg",
        ];
        assert_eq!(named, expected);
    }

    #[test]
    fn what_is_shared_is_wanted_by_all_alike() {
        let two = "queues.a.push.url = \"https://shop.example/a\"\nqueues.b.push.url = \"https://shop.example/b\"\n";
        assert_eq!(check(&config(two)), Ok(()));
        for (more, told) in [
            (
                "queues.b.policy.budget = { share = 0.2 }",
                "queues.b.policy.budget differs from that of queues.a",
            ),
            ("queues.a.policy.budget = \"none\"", "queues.b.policy.budget differs from that of queues.a"),
            ("queues.a.policy.breaker = {}", "queues.b.policy.breaker differs from that of queues.a"),
        ] {
            let refused = check(&config(&format!("{two}{more}\n"))).unwrap_err();
            assert!(refused.starts_with(told) && refused.contains("https://shop.example,"), "{refused}");
            let apart = "queues.b.policy.name = \"b\"\n";
            assert_eq!(check(&config(&format!("{two}{more}\n{apart}"))), Ok(()));
        }
    }
}
