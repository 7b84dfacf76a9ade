//! Gauges computed on request: events by state, the oldest due and failing events, budgets and breakers, the store.
//!
//! Counting events reads every one of them. So a count is reused for twenty times as long as it took: reading costs
//! at most a twentieth of a reader, however many events and requests there are.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive::Redrive;
use redrive::engine::DownstreamLoad;
use redrive::names::{label, metric};
use redrive::store::{CommitAndDiskStats, Commits, DiskSpace, EventCount, Histogram, StoreError};
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
    counts: Arc<Vec<EventCount>>,
    oldest: Arc<Vec<(String, Duration)>>,
    retrying: Arc<Vec<(String, u64, Duration)>>,
    unknown: Arc<Vec<(String, u64)>>,
}

impl Samples {
    /// Writes all gauges. Unreadable ones are left out: `/readyz` reports whether the store works.
    pub(super) async fn write(
        &self,
        redrive: &Redrive,
        targets: &BTreeMap<String, Target>,
        text: &mut String,
    ) {
        match self.counted(redrive).await {
            Ok(counted) => write_counted(&counted, text),
            Err(error) => tracing::debug!(%error, "cannot count events"),
        }
        write_pressures(&redrive.pressures(), targets, text);
        write_figures(&redrive.figures(), text);
    }

    /// The count, refreshed if too old. Concurrent callers wait for it.
    async fn counted(&self, redrive: &Redrive) -> Result<Counted, StoreError> {
        let mut last = self.0.lock().await;
        let began = Instant::now();
        if let Some(counted) = last.as_ref().filter(|counted| began < counted.until) {
            return Ok(counted.clone());
        }
        let (counts, oldest) = (redrive.counts().await?.into(), redrive.oldest_due().await?.into());
        let retrying = redrive.retrying().await?.into();
        let unknown = few(redrive.unknown_outcomes().await?).into();
        let until = Instant::now() + began.elapsed() * AGAIN;
        Ok(last.insert(Counted { until, counts, oldest, retrying, unknown }).clone())
    }
}

fn write_counted(counted: &Counted, text: &mut String) {
    let mut events = Family::new(text, metric::EVENTS, "gauge", "Events that have not ended, by state");
    for EventCount { queue, state, events: number } in &*counted.counts {
        events.line(&[(label::QUEUE, queue), (label::STATE, state.as_str())], number);
    }
    let help = "Age of the oldest event that is due and has not ended";
    let mut oldest = Family::new(text, metric::OLDEST_DUE_SECONDS, "gauge", help);
    for (queue, age) in &*counted.oldest {
        oldest.line(&[(label::QUEUE, queue)], age.as_secs_f64());
    }
    let help = "Events that failed at least once and are retried";
    let mut retrying = Family::new(text, metric::RETRYING, "gauge", help);
    for (queue, events, _) in &*counted.retrying {
        retrying.line(&[(label::QUEUE, queue)], events);
    }
    let help = "Time since the first attempt of the oldest event that is retried";
    let mut failing = Family::new(text, metric::OLDEST_FAILING_SECONDS, "gauge", help);
    for (queue, _, age) in &*counted.retrying {
        failing.line(&[(label::QUEUE, queue)], age.as_secs_f64());
    }
    let help = "Requests whose outcome is unknown; each needs an operator";
    let mut unknown = Family::new(text, metric::LEDGER_UNKNOWN, "gauge", help);
    for (operation, requests) in &*counted.unknown {
        unknown.line(&[(label::ENDPOINT, operation)], requests);
    }
}

/// The operations with most requests, and the others together: clients may name many.
fn few(mut counts: Vec<(String, u64)>) -> Vec<(String, u64)> {
    counts.sort_by_key(|(_, requests)| std::cmp::Reverse(*requests));
    let others: u64 = counts.iter().skip(OPERATIONS_MAX).map(|(_, requests)| requests).sum();
    counts.truncate(OPERATIONS_MAX);
    if others > 0 {
        counts.push(("others".to_owned(), others));
    }
    counts
}

fn write_pressures(pressures: &[DownstreamLoad], targets: &BTreeMap<String, Target>, text: &mut String) {
    // Of several queues that share a budget and a breaker, the first one reports them.
    let is_told = |pressure: &&DownstreamLoad| {
        targets
            .get(&pressure.queue)
            .and_then(|target| target.queues.first())
            .is_none_or(|it| *it == pressure.queue)
    };
    let pressures: Vec<&DownstreamLoad> = pressures.iter().filter(is_told).collect();
    // Others may have the same name but their own budget: then the queue label distinguishes them.
    let is_twice = |target: &str| pressures.iter().filter(|other| other.target == target).count() > 1;
    let mut family = |name, kind, help, value: &dyn Fn(&DownstreamLoad) -> Option<u64>| {
        let mut family = Family::new(text, name, kind, help);
        for pressure in &pressures {
            if let Some(value) = value(pressure) {
                let labels = [(label::TARGET, pressure.target.as_str()), (label::QUEUE, &pressure.queue)];
                family.line(if is_twice(&pressure.target) { &labels } else { &labels[..1] }, value);
            }
        }
    };
    family(metric::BUDGET_TOKENS, "gauge", "Retries the budget allows right now", &|p| p.budget_tokens);
    family(metric::BUDGET_SPENT, "counter", "Budget tokens spent on retries", &|p| p.budget_spent);
    family(
        metric::BREAKER_STATE,
        "gauge",
        "State of the circuit breaker: 0 closed, 1 half open, 2 open",
        &|pressure| pressure.breaker.map(|state| state.as_number().into()),
    );
}

fn write_figures(figures: &CommitAndDiskStats, text: &mut String) {
    if let Some(Commits { count, batch, sync }) = &figures.commits {
        Family::new(text, metric::COMMITS, "counter", "Store commits").line(&[], count);
        Family::new(text, metric::COMMIT_BATCH, "histogram", "Changes per commit").spread(batch);
        let help = "Duration of commits; most of it is the disk sync";
        Family::new(text, metric::SYNC_SECONDS, "histogram", help).spread(sync);
    }
    if let Some(DiskSpace { free, least }) = figures.disk {
        let help = "Free bytes on the store's disk";
        Family::new(text, metric::DISK_FREE_BYTES, "gauge", help).line(&[], free);
        let help = "Free bytes below which publishing is refused";
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

    fn spread(&mut self, spread: &Histogram) {
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

/// Escapes a label value.
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
