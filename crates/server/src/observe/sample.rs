//! Figures that are asked for when somebody looks: events by state, the oldest that is due, budgets and breakers, the
//! store.
//!
//! To count events reads every one of them. So a count is used again for twenty times as long as it took: looking
//! costs a twentieth of a reader at most, however many there are and however often somebody looks.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive::Redrive;
use redrive::engine::Pressure;
use redrive::names::{label, metric};
use redrive::store::{Commits, Count, Figures, Room, Spread, StoreError};
use tokio::sync::Mutex;

use crate::push::target::Target;

/// For how many times as long as it took a count is used again.
const AGAIN: u32 = 20;

/// How many operations have a line of their own.
const OPERATIONS_MAX: usize = 100;

/// The last count of events.
#[derive(Debug, Default)]
pub struct Samples(Mutex<Option<Counted>>);

#[derive(Debug, Clone)]
struct Counted {
    until: Instant,
    counts: Arc<Vec<Count>>,
    oldest: Arc<Vec<(String, Duration)>>,
    unknown: Arc<Vec<(String, u64)>>,
}

impl Samples {
    /// Writes all there is. What cannot be read is left out: whether the store works is for `/readyz` to say.
    pub(super) async fn write(
        &self,
        redrive: &Redrive,
        targets: &BTreeMap<String, Target>,
        text: &mut String,
    ) {
        match self.counted(redrive).await {
            Ok(counted) => write_counted(&counted, text),
            Err(error) => tracing::debug!(%error, "events cannot be counted"),
        }
        write_pressures(&redrive.pressures(), targets, text);
        write_figures(&redrive.figures(), text);
    }

    /// The count, made anew where the last one is too old. Who comes meanwhile waits for it, and makes none.
    async fn counted(&self, redrive: &Redrive) -> Result<Counted, StoreError> {
        let mut last = self.0.lock().await;
        let began = Instant::now();
        if let Some(counted) = last.as_ref().filter(|counted| began < counted.until) {
            return Ok(counted.clone());
        }
        let (counts, oldest) = (redrive.counts().await?.into(), redrive.oldest_due().await?.into());
        let unknown = few(redrive.unknown_outcomes().await?).into();
        let until = Instant::now() + began.elapsed() * AGAIN;
        Ok(last.insert(Counted { until, counts, oldest, unknown }).clone())
    }
}

fn write_counted(counted: &Counted, text: &mut String) {
    let mut events = Family::new(text, metric::EVENTS, "gauge", "Events that have not ended, by state");
    for Count { queue, state, events: number } in &*counted.counts {
        events.line(&[(label::QUEUE, queue), (label::STATE, state.as_str())], number);
    }
    let help = "For how long the oldest event could have run and did not end";
    let mut oldest = Family::new(text, metric::OLDEST_DUE_SECONDS, "gauge", help);
    for (queue, age) in &*counted.oldest {
        oldest.line(&[(label::QUEUE, queue)], age.as_secs_f64());
    }
    let help = "Requests whose outcome is unknown: each waits for a person";
    let mut unknown = Family::new(text, metric::LEDGER_UNKNOWN, "gauge", help);
    for (operation, requests) in &*counted.unknown {
        unknown.line(&[(label::ENDPOINT, operation)], requests);
    }
}

/// Those with most requests, and the others together: whoever names operations may name many.
fn few(mut counts: Vec<(String, u64)>) -> Vec<(String, u64)> {
    counts.sort_by_key(|(_, requests)| std::cmp::Reverse(*requests));
    let others: u64 = counts.iter().skip(OPERATIONS_MAX).map(|(_, requests)| requests).sum();
    counts.truncate(OPERATIONS_MAX);
    if others > 0 {
        counts.push(("others".to_owned(), others));
    }
    counts
}

fn write_pressures(pressures: &[Pressure], targets: &BTreeMap<String, Target>, text: &mut String) {
    // Of several queues that share a budget and a breaker, the first one tells of them.
    let is_told = |pressure: &&Pressure| {
        targets
            .get(&pressure.queue)
            .and_then(|target| target.queues.first())
            .is_none_or(|it| *it == pressure.queue)
    };
    let pressures: Vec<&Pressure> = pressures.iter().filter(is_told).collect();
    // Others may have the same name and a budget each: then the queue says which.
    let is_twice = |target: &str| pressures.iter().filter(|other| other.target == target).count() > 1;
    let mut family = |name, kind, help, value: &dyn Fn(&Pressure) -> Option<u64>| {
        let mut family = Family::new(text, name, kind, help);
        for pressure in &pressures {
            if let Some(value) = value(pressure) {
                let labels = [(label::TARGET, pressure.target.as_str()), (label::QUEUE, &pressure.queue)];
                family.line(if is_twice(&pressure.target) { &labels } else { &labels[..1] }, value);
            }
        }
    };
    family(metric::BUDGET_TOKENS, "gauge", "Retries that could be made now", &|p| p.budget_tokens);
    family(metric::BUDGET_SPENT, "counter", "Tokens taken for retries", &|p| p.budget_spent);
    family(metric::BREAKER_STATE, "gauge", "0 closed, 1 half open, 2 open", &|pressure| {
        pressure.breaker.map(|state| state.as_number().into())
    });
}

fn write_figures(figures: &Figures, text: &mut String) {
    if let Some(Commits { count, batch, sync }) = &figures.commits {
        Family::new(text, metric::COMMITS, "counter", "Commits of the store").line(&[], count);
        Family::new(text, metric::COMMIT_BATCH, "histogram", "Changes in a commit").spread(batch);
        let help = "How long commits took; nearly all of it is the sync of the disk";
        Family::new(text, metric::SYNC_SECONDS, "histogram", help).spread(sync);
    }
    if let Some(Room { free, least }) = figures.disk {
        let help = "Bytes that are free where the store is";
        Family::new(text, metric::DISK_FREE_BYTES, "gauge", help).line(&[], free);
        let help = "Below how many free bytes publishing stops";
        Family::new(text, metric::DISK_LEAST_BYTES, "gauge", help).line(&[], least);
    }
}

/// A metric with its lines. The head is written with the first of them.
struct Family<'a> {
    text: &'a mut String,
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    begun: bool,
}

impl<'a> Family<'a> {
    fn new(text: &'a mut String, name: &'static str, kind: &'static str, help: &'static str) -> Self {
        Self { text, name, kind, help, begun: false }
    }

    fn line(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.named("", labels, value);
    }

    fn spread(&mut self, spread: &Spread) {
        for (bound, count) in &spread.buckets {
            self.named("_bucket", &[("le", &bound.to_string())], count);
        }
        self.named("_bucket", &[("le", "+Inf")], spread.count);
        self.named("_sum", &[], spread.sum);
        self.named("_count", &[], spread.count);
    }

    fn named(&mut self, end: &str, labels: &[(&str, &str)], value: impl Display) {
        let Self { text, name, kind, help, .. } = self;
        if !std::mem::replace(&mut self.begun, true) {
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        }
        let labels: Vec<_> =
            labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(text, "{name}{end}{labels} {value}");
    }
}

/// A label's value as the format has it.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_cannot_break_out_of_its_line() {
        let mut text = String::new();
        Family::new(&mut text, "m", "gauge", "of a test").line(&[("queue", "a\"}\n\\")], 1);
        assert_eq!(text, "# HELP m of a test\n# TYPE m gauge\nm{queue=\"a\\\"}\\n\\\\\"} 1\n");
    }

    #[test]
    fn few_operations_have_lines_and_none_is_left_out_of_the_sum() {
        let counts: Vec<_> = (0..150).map(|n| (format!("POST /{n}"), n)).collect();
        let few = few(counts);
        assert_eq!(few.len(), OPERATIONS_MAX + 1);
        assert_eq!((few[0].1, few[100].0.as_str()), (149, "others"));
        assert_eq!(few.iter().map(|(_, requests)| requests).sum::<u64>(), (0..150).sum::<u64>());
    }

    #[test]
    fn a_metric_without_lines_is_not_there() {
        let mut text = String::new();
        let _ = Family::new(&mut text, "m", "gauge", "of a test");
        assert_eq!(text, "");
    }
}
