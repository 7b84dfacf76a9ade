//! Which events a page is about: the API's filter, as an address, as a request, as a command and as chips.

use serde_json::{Map, Value};

use super::command::Command;
use super::link::{self, Pairs};
use super::visitor::Visitor;

/// The names of the API's filter, and the command line's flag for each.
const NAMES: [(&str, Option<&str>); 11] = [
    ("queue", Some("queue")),
    ("tenant", Some("tenant")),
    ("key", Some("key")),
    ("id", None),
    ("cause", Some("group")),
    ("reason", Some("reason")),
    ("attempts_min", Some("attempts-min")),
    ("attempts_max", Some("attempts-max")),
    ("since", Some("since")),
    ("before", Some("before")),
    ("match", Some("match")),
];

/// A filter, as a page's address says it. The API checks its values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct EventFilter(Pairs);

/// A part of a filter, and the page without it.
#[derive(Debug, Clone)]
pub(crate) struct Chip {
    pub(crate) name: String,
    pub(crate) value: String,
    pub(crate) without: String,
}

impl EventFilter {
    /// The filter of a page. A token of several queues has to name one: the first, if the page names none.
    pub(crate) fn of(visitor: &Visitor) -> Self {
        let mut filter = Self::read(&visitor.query);
        if let Some([first, _, ..]) = visitor.caller.own_queues().filter(|_| filter.get("queue").is_empty()) {
            filter.0.push(("queue".to_owned(), first.clone()));
        }
        filter
    }

    /// The filter among other parameters.
    pub(crate) fn read(pairs: &Pairs) -> Self {
        let is_known = |name: &str| NAMES.iter().any(|(known, _)| *known == name);
        Self(pairs.iter().filter(|(name, value)| is_known(name) && !value.is_empty()).cloned().collect())
    }

    /// A value; empty if absent.
    pub(crate) fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    /// Whether it filters nothing.
    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Its names and values.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The address of a page with this filter and other parameters.
    pub(crate) fn address<'a>(&'a self, path: &str, others: &[(&'a str, &'a str)]) -> String {
        link::address(path, others.iter().copied().chain(self.pairs()))
    }

    /// As the `filter` of a request.
    pub(crate) fn json(&self) -> Value {
        let member = |(name, value): (&str, &str)| {
            let number = name.starts_with("attempts_").then(|| value.parse::<u32>().ok()).flatten();
            (name.to_owned(), number.map_or_else(|| value.into(), Value::from))
        };
        Value::Object(self.pairs().map(member).collect::<Map<_, _>>())
    }

    /// Reads the filter of a job.
    pub(crate) fn of_json(filter: &Value) -> Self {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let pairs = filter.as_object().into_iter().flatten();
        Self::read(&pairs.map(|(name, value)| (name.clone(), text(value))).collect())
    }

    /// As flags of a command; `None` for a filter that no flag says.
    pub(crate) fn flags(&self, command: Command) -> Option<Command> {
        let mut command = command;
        for (name, value) in self.pairs() {
            let flag = NAMES.iter().find(|(known, _)| *known == name).and_then(|(_, flag)| *flag)?;
            command = command.flag(flag, Some(value));
        }
        Some(command)
    }

    /// A chip for each part.
    pub(crate) fn chips(&self, path: &str, others: &[(&str, &str)]) -> Vec<Chip> {
        let chip = |(name, value): &(String, String)| {
            let rest = self.pairs().filter(|(other, _)| other != name);
            let without = link::address(path, others.iter().copied().chain(rest));
            Chip { name: name.replace('_', " "), value: value.clone(), without }
        };
        self.0.iter().map(chip).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_the_same_in_every_form() {
        let pairs = link::parse("queue=orders&state=dead&match=a+b&attempts_min=3&cause=&key=k");
        let filter = EventFilter::read(&pairs);
        assert_eq!(
            filter.address("/desk/events", &[]),
            "/desk/events?queue=orders&match=a%20b&attempts%5Fmin=3&key=k".replace("%5F", "_")
        );
        assert_eq!(
            filter.json(),
            serde_json::json!({ "queue": "orders", "match": "a b", "attempts_min": 3, "key": "k" })
        );
        assert_eq!(EventFilter::of_json(&filter.json()).json(), filter.json());
        let command = filter.flags(Command::new("dead ls")).expect("flags").to_string();
        assert_eq!(command, "redrive dead ls --queue=orders '--match=a b' --attempts-min=3 --key=k");
        let chips = filter.chips("/desk/events", &[("state", "dead")]);
        assert_eq!(chips.len(), 4);
        assert!(!chips[0].without.contains("orders") && chips[0].without.contains("state=dead"));
    }
}
