//! What queues with a destination call, by name.
//!
//! A budget bounds what all callers together add to something that fails, and a breaker sees it fail sooner the more of
//! them it hears. So queues that send to one place, the same scheme, host and port, share one budget and one breaker.
//! Who knows better says so with `policy.name`: queues of one name share, wherever they send to, and a name of one's own
//! is a budget of one's own.
//!
//! A queue that shares with nobody is its own target under its own name, so its address may change by a reload. Who
//! shares with whom may not: budgets are made when the server starts.

use std::collections::BTreeMap;

use redrive::policy::{PolicyBuilder, PolicySettings};
use redrive::{Breaker, Budget, PolicyError};

use super::destination::Destination;
use crate::config::{Config, QueueSettings};

/// What a queue calls.
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

/// What makes two queues call the same.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Named(String),
    At(String),
}

/// What each queue with a destination calls, by the queue.
#[must_use]
pub fn targets(config: &Config) -> BTreeMap<String, Target> {
    let mut places: BTreeMap<Place, Vec<&String>> = BTreeMap::new();
    for (name, queue) in &config.queues {
        if let Some(place) = place(queue) {
            places.entry(place).or_default().push(name);
        }
    }
    let mut targets = BTreeMap::new();
    for (place, queues) in places {
        let queues: Vec<String> = queues.into_iter().cloned().collect();
        let name = match (place, queues.as_slice()) {
            (Place::Named(name), _) => name,
            (Place::At(_), [queue]) => queue.clone(),
            (Place::At(origin), _) => origin,
        };
        let target = Target { name, queues };
        targets.extend(target.queues.iter().map(|queue| (queue.clone(), target.clone())));
    }
    targets
}

/// Where a queue sends to; nowhere where workers fetch, or the address is none and told elsewhere.
fn place(queue: &QueueSettings) -> Option<Place> {
    let destination = Destination::new(queue.push.as_ref()?).ok()?;
    Some(match given_name(&queue.policy) {
        Some(name) => Place::Named(name.to_owned()),
        None => Place::At(destination.url().origin().ascii_serialization()),
    })
}

/// A policy's name, where somebody gave it one.
#[must_use]
pub fn given_name(policy: &PolicySettings) -> Option<&str> {
    Some(policy.name.as_str()).filter(|name| !name.is_empty() && *name != PolicySettings::default().name)
}

/// Refuses queues that share a target and want different budgets or breakers for it.
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
            "queues.{name}.policy.{what} is another than that of queues.{first}, and both send to {place}, which has one \
             {what}; make them the same, or give each queue a policy.name of its own"
        ));
    }
    Ok(())
}

/// Budgets and breakers that queues share, by those queues.
#[derive(Debug, Default)]
pub struct Shared(BTreeMap<Vec<String>, (Option<Budget>, Option<Breaker>)>);

impl Shared {
    /// The policy of a queue that calls this, with what it shares.
    ///
    /// # Errors
    /// With what makes no sense in it.
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
                "queues.b.policy.budget is another than that of queues.a",
            ),
            ("queues.a.policy.budget = \"none\"", "queues.b.policy.budget is another than that of queues.a"),
            ("queues.a.policy.breaker = {}", "queues.b.policy.breaker is another than that of queues.a"),
        ] {
            let refused = check(&config(&format!("{two}{more}\n"))).unwrap_err();
            assert!(refused.starts_with(told) && refused.contains("https://shop.example,"), "{refused}");
            let apart = "queues.b.policy.name = \"b\"\n";
            assert_eq!(check(&config(&format!("{two}{more}\n{apart}"))), Ok(()));
        }
    }
}
