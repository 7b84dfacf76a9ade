//! The figures at the end, and whether they add up.

use std::collections::BTreeMap;

use redrive::{Executed, Policy, Report, StopReason};
use reqwest::StatusCode;

use super::downstream::Downstream;

/// How one order ended.
#[derive(Debug)]
pub(crate) enum Ending {
    /// With an answer, good or bad.
    Answered { order: u32, status: StatusCode, report: Report },
    /// Without one.
    Unanswered { order: u32, report: Report },
    /// Without a word on why; a defect of ours.
    Lost { order: u32 },
}

/// What was seen over all orders.
#[derive(Debug)]
pub(crate) struct Summary {
    placed: u32,
    interrupted: bool,
    done: Vec<u32>,
    /// Orders that were given up, and whether their effect may have happened.
    given_up: Vec<(u32, Executed)>,
    lost: Vec<u32>,
    attempts: u32,
    after_retry: u32,
    reasons: BTreeMap<&'static str, u32>,
}

impl Summary {
    pub(crate) fn new(placed: u32) -> Self {
        Self {
            placed,
            interrupted: false,
            done: Vec::new(),
            given_up: Vec::new(),
            lost: Vec::new(),
            attempts: 0,
            after_retry: 0,
            reasons: BTreeMap::new(),
        }
    }

    pub(crate) fn interrupted(&mut self, placed: u32) {
        self.placed = placed;
        self.interrupted = true;
    }

    pub(crate) const fn was_interrupted(&self) -> bool {
        self.interrupted
    }

    pub(crate) fn note(&mut self, ending: Ending) {
        let (order, report, done) = match ending {
            Ending::Lost { order } => return self.lost.push(order),
            Ending::Answered { order, status, report } => (order, report, status.is_success()),
            Ending::Unanswered { order, report } => (order, report, false),
        };
        self.attempts += report.attempts;
        *self.reasons.entry(report.reason.as_str()).or_default() += 1;
        if report.reason == StopReason::Succeeded && report.attempts > 1 {
            self.after_retry += 1;
        }
        if done {
            self.done.push(order);
        } else {
            self.given_up.push((order, report.executed));
        }
    }

    fn unfinished(&self) -> usize {
        self.placed as usize - self.done.len() - self.given_up.len() - self.lost.len()
    }

    pub(crate) fn print(&self, downstream: &Downstream, policy: &Policy) {
        let counted = downstream.counted();
        let (done, given_up) = (self.done.len(), self.given_up.len());
        println!("\nSummary");
        print!("  orders      {} = {done} done + {given_up} given up", self.placed);
        match self.unfinished() {
            0 => println!(),
            unfinished => println!(" + {unfinished} unfinished"),
        }
        println!("  attempts    {} = {} first + {} retries", self.attempts, done + given_up, self.retries());
        println!(
            "  at first    {} done, {} more after a retry",
            done - self.after_retry as usize,
            self.after_retry
        );
        let reasons: Vec<_> =
            self.reasons.iter().map(|(reason, times)| format!("{reason} {times}")).collect();
        println!("  ended as    {}", reasons.join(", "));
        if let Some(budget) = policy.budget() {
            println!("  budget      {} retries out of it", budget.spent());
        }
        println!("\nAt the service");
        println!("  requests    {}", counted.requests);
        println!("  effects     {}, of which twice: {}", counted.effects, counted.twice);
        println!("  recognised  {} requests whose order had taken effect before", counted.recognised);
        println!("\nEvery order that is done took effect exactly once.");
        let unsure: Vec<_> =
            self.given_up.iter().filter(|(_, executed)| *executed == Executed::Unknown).collect();
        if !unsure.is_empty() {
            let happened = unsure.iter().filter(|(order, _)| downstream.has_effect(&key(*order))).count();
            println!(
                "Of those given up, {} have an unknown outcome; the service executed {happened} of them.",
                unsure.len()
            );
        }
    }

    fn retries(&self) -> u32 {
        self.attempts.saturating_sub(u32::try_from(self.done.len() + self.given_up.len()).unwrap_or(u32::MAX))
    }

    /// What is wrong with the figures, if anything is.
    pub(crate) fn wrong(&self, downstream: &Downstream) -> Option<String> {
        let counted = downstream.counted();
        if counted.twice > 0 {
            return Some(format!("{} effects happened more than once", counted.twice));
        }
        if let Some(order) = self.done.iter().find(|order| !downstream.has_effect(&key(**order))) {
            return Some(format!("order {order} is done and had no effect"));
        }
        if let Some(order) = self.lost.first() {
            return Some(format!("order {order} ended without a report"));
        }
        (!self.interrupted && self.unfinished() > 0)
            .then(|| format!("{} orders are missing", self.unfinished()))
    }
}

/// An order's key, as it travels: a structured string.
fn key(order: u32) -> String {
    format!("\"order-{order}\"")
}
