//! What the doors have in common: a run, the scope around it, and the scope that it is for others.

use std::borrow::Borrow;
use std::time::Instant;

use redrive_core::observe::Outcome;
use redrive_core::run::{Admission, Run, Verdict};
use redrive_core::{Moment, Policy, Report, StopReason};

use crate::attempt::Attempt;
use crate::clock::{ThreadDice, clock, moment};
use crate::scope::{self, Scope};

/// What a call site says beside the policy.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Terms {
    /// Retry also inside another retry.
    pub(crate) independent: bool,
    /// Make one attempt whatever the policy says: the call cannot be repeated.
    pub(crate) only_once: bool,
    pub(crate) deadline: Option<Instant>,
}

/// One call on its way. `P` is a policy or a reference to one.
#[derive(Debug)]
pub(crate) struct Course<P> {
    policy: P,
    terms: Terms,
    run: Option<Run>,
    /// The attempt under way, as what runs inside it sees it.
    scope: Option<Scope>,
    /// Which attempt somebody further out is on, where somebody repeats.
    nested: Option<u32>,
    /// Whether a retry further in forbade that the last attempt be repeated.
    forbidden: bool,
}

/// Whether to call now.
#[derive(Debug)]
pub(crate) enum Begin {
    Call(Attempt),
    Wait(Moment),
    Stop(StopReason),
}

/// What follows an attempt.
#[derive(Debug)]
pub(crate) enum Next {
    Wait(Moment),
    Stop(StopReason),
}

impl<P: Borrow<Policy>> Course<P> {
    pub(crate) const fn new(policy: P, terms: Terms) -> Self {
        Self { policy, terms, run: None, scope: None, nested: None, forbidden: false }
    }

    pub(crate) const fn terms_mut(&mut self) -> &mut Terms {
        &mut self.terms
    }

    pub(crate) fn begin(&mut self) -> Begin {
        let policy = self.policy.borrow();
        let run = match &mut self.run {
            Some(run) => run,
            empty => {
                let outer = scope::current();
                self.nested = outer
                    .filter(|outer| outer.repeats() && !self.terms.independent)
                    .map(|outer| outer.attempt().overall());
                empty.insert(start(policy, self.terms, self.nested.is_some(), outer))
            }
        };
        match run.admit(policy, &clock, &mut ThreadDice) {
            Admission::Go { deadline } => {
                let (number, max) = (run.attempts(), run.attempts_max());
                let overall = self.nested.unwrap_or(number);
                let attempt = Attempt { number, max, overall, deadline };
                self.scope = Some(Scope::of(attempt, self.nested.is_some() || max > 1));
                Begin::Call(attempt)
            }
            Admission::Wait(until) => Begin::Wait(until),
            Admission::Stop(reason) => Begin::Stop(reason),
        }
    }

    /// Runs a part of the attempt inside its scope.
    pub(crate) fn inside<R>(&mut self, work: impl FnOnce() -> R) -> R {
        match &mut self.scope {
            Some(scope) => scope.enter(work),
            None => work(),
        }
    }

    /// Whether an attempt is under way.
    pub(crate) const fn is_inside(&self) -> bool {
        self.scope.is_some()
    }

    pub(crate) fn settle(&mut self, outcome: Outcome) -> Next {
        let forbidden = self.scope.take().and_then(|scope| scope.forbidden());
        self.forbidden = forbidden.is_some();
        let Some(run) = &mut self.run else { return Next::Stop(StopReason::Cancelled) };
        match run.settle(self.policy.borrow(), outcome, forbidden, &clock, &mut ThreadDice) {
            Verdict::Done => Next::Stop(StopReason::Succeeded),
            Verdict::Drop => Next::Stop(StopReason::Discarded),
            Verdict::Dead(reason) => Next::Stop(reason),
            Verdict::RetryAt(at) => Next::Wait(at),
        }
    }

    pub(crate) fn end(&mut self, reason: StopReason) -> Report {
        let policy = self.policy.borrow();
        let run = self.run.get_or_insert_with(|| Run::new(policy));
        let report = run.end(policy, reason, &clock);
        let failed = !matches!(reason, StopReason::Succeeded | StopReason::Discarded);
        if failed && self.forbids_outer_retry(&report) {
            scope::forbid_outer_retry(reason);
        }
        report
    }

    /// Layers do not multiply: whoever has retried in vain says so, unless he asked to be left out of it, and whoever
    /// was told so passes it on.
    fn forbids_outer_retry(&self, report: &Report) -> bool {
        let in_vain =
            matches!(report.reason, StopReason::AttemptsSpent | StopReason::TimeSpent) && report.attempts > 1;
        (in_vain || self.forbidden) && !self.terms.independent || report.reason.forbids_outer_retry()
    }
}

fn start(policy: &Policy, terms: Terms, nested: bool, outer: Option<Scope>) -> Run {
    let mut run = Run::new(policy);
    if nested || terms.only_once {
        run.only_once();
    }
    if let Some(deadline) = terms.deadline {
        run.deadline(moment(deadline));
    }
    if let Some(deadline) = outer.and_then(|outer| outer.deadline()) {
        run.deadline(deadline);
    }
    run
}
