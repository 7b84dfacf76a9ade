//! The figures at the end, and whether they add up.

use std::collections::BTreeMap;

use redrive::{Executed, Policy, Report, StopReason};
use reqwest::StatusCode;

use super::downstream::{Counted, Downstream};
use super::say::{counted, say};

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
    /// Orders of which at least one attempt was made.
    sent: u32,
    never_sent: u32,
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
            sent: 0,
            never_sent: 0,
            after_retry: 0,
            reasons: BTreeMap::new(),
        }
    }

    pub(crate) fn interrupted(&mut self, placed: u32) {
        self.placed = placed;
        self.interrupted = true;
    }

    /// How many orders there are to be.
    pub(crate) const fn placed(&self) -> u32 {
        self.placed
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
        *if report.attempts > 0 { &mut self.sent } else { &mut self.never_sent } += 1;
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
        let Counted { effects, lost, recognised, refused, overloaded, ignored } = downstream.counted();
        let (done, given_up) = (self.done.len(), self.given_up.len());
        say("\nSummary");
        if self.interrupted {
            say("  interrupted: no more orders were placed, and waits were cancelled");
        }
        let never = match self.never_sent {
            0 => String::new(),
            orders => format!(" ({orders} of them never sent: the breaker was open, or it was too late)"),
        };
        say(format_args!("  orders      {} = {done} done + {given_up} given up{never}", self.placed));
        let (first, retries) = (self.sent, self.attempts - self.sent);
        say(format_args!("  attempts    {} = {first} first + {retries} retries", self.attempts));
        let at_first = done - self.after_retry as usize;
        say(format_args!("  done        {at_first} at first, {} after a retry", self.after_retry));
        let reasons: Vec<_> =
            self.reasons.iter().map(|(reason, times)| format!("{reason} {times}")).collect();
        say(format_args!("  ended as    {}", reasons.join(", ")));
        if let Some(budget) = policy.budget() {
            say(format_args!("  budget      {} taken for retries", counted(budget.spent(), "token")));
        }
        say("\nAt the service");
        let requests = downstream.counted().requests();
        say(format_args!(
            "  requests    {requests} = {effects} new + {recognised} recognised + {refused} refused + {overloaded} \
             overloaded + {ignored} ignored"
        ));
        say(format_args!("  effects     {effects}, of which twice: {}", downstream.twice()));
        say(format_args!("  lost        {} after the order took effect", counted(lost, "answer")));
    }

    /// Said only after it was checked.
    pub(crate) fn print_promise(&self, downstream: &Downstream) {
        say("\nEvery order that is done took effect exactly once.");
        let recognised = downstream.counted().recognised;
        if recognised > 0 {
            let repeats = counted(recognised, "repeat");
            say(format_args!(
                "{repeats} of an order that had taken effect: recognised by its key, and not done twice."
            ));
        }
        let unsure = self.given_up.iter().filter(|(_, executed)| *executed == Executed::Unknown);
        let (unsure, happened) = unsure.fold((0u64, 0), |(unsure, happened), (order, _)| {
            (unsure + 1, happened + u32::from(downstream.has_effect(&key(*order))))
        });
        if unsure > 0 {
            let orders = counted(unsure, "order");
            say(format_args!(
                "{orders} given up with an unknown outcome, of which the service executed {happened}."
            ));
        }
    }

    /// What is wrong with the figures, if anything is.
    pub(crate) fn wrong(&self, downstream: &Downstream) -> Option<String> {
        let (requests, twice) = (downstream.counted().requests(), downstream.twice());
        if twice > 0 {
            return Some(format!("{twice} orders took effect more than once"));
        }
        if let Some(order) = self.done.iter().find(|order| !downstream.has_effect(&key(**order))) {
            return Some(format!("order {order} is done and had no effect"));
        }
        if let Some(order) = self.lost.first() {
            return Some(format!("order {order} ended without a report"));
        }
        if requests > self.attempts {
            return Some(format!("{requests} requests came from {} attempts", self.attempts));
        }
        (self.unfinished() > 0).then(|| format!("{} orders are missing", self.unfinished()))
    }
}

/// An order's key, as it travels: a structured string.
fn key(order: u32) -> String {
    format!("\"order-{order}\"")
}
