//! The state shared by all call styles: a run, the scope around it, and the scope it provides.

use std::borrow::Borrow;
use std::mem;
use std::time::Instant;

use redrive_core::observe::Outcome;
use redrive_core::run::{Admission, Run, Verdict};
use redrive_core::{Budget, Disposition, Moment, Policy, Report, StopReason};

use crate::attempt::Attempt;
use crate::clock::{ThreadRandom, clock, moment};
use crate::scope::{self, Inside, RetryHint, RetryScope};

/// The options of a call site, beside the policy.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CallOptions {
    /// Retry even inside another retry.
    pub(crate) independent: bool,
    /// Make one attempt whatever the policy says: the call cannot be repeated.
    pub(crate) only_once: bool,
    pub(crate) deadline: Option<Instant>,
}

impl CallOptions {
    /// Whether the call site says anything at all.
    #[inline(always)]
    const fn are_special(&self) -> bool {
        self.independent | self.only_once | self.deadline.is_some()
    }
}

/// One call on its way. `P` is a policy or a reference to one.
#[derive(Debug)]
pub(crate) struct CallState<P: Borrow<Policy>> {
    policy: P,
    terms: CallOptions,
    run: Option<Run>,
    /// Whether it has ended and the observers were notified.
    over: bool,
    /// Whether an attempt is in progress.
    inside: bool,
    /// Until when it may run.
    deadline: Option<Moment>,
    /// During an attempt, the hint of an inner retry; after it, the hint for outer retries.
    hint: Option<RetryHint>,
    /// The attempt number of the outer retry, if there is one.
    nested: Option<u32>,
}

/// The budget that pays for retries under this policy; zero if none.
#[inline(always)]
fn payer(policy: &Policy) -> usize {
    policy.budget().map_or(0, Budget::id)
}

/// Whether to call now.
#[derive(Debug)]
pub(crate) enum Begin {
    Call,
    Wait(Moment),
    Stop(StopReason),
}

/// The step after an attempt.
#[derive(Debug)]
pub(crate) enum Next {
    Wait(Moment),
    Stop(StopReason),
}

impl<P: Borrow<Policy>> CallState<P> {
    #[inline]
    pub(crate) const fn new(policy: P, terms: CallOptions) -> Self {
        Self {
            policy,
            terms,
            run: None,
            over: false,
            inside: false,
            deadline: None,
            hint: None,
            nested: None,
        }
    }

    pub(crate) const fn terms_mut(&mut self) -> &mut CallOptions {
        &mut self.terms
    }

    #[inline(always)]
    pub(crate) fn begin(&mut self) -> Begin {
        let policy = self.policy.borrow();
        if self.run.is_none() {
            // There is nothing to drop, which the compiler cannot see.
            mem::forget(self.run.replace(Run::new(policy)));
            if self.terms.are_special() || scope::current().is_some() {
                self.look_around();
            }
        }
        let policy = self.policy.borrow();
        let Some(run) = &mut self.run else { return Begin::Stop(StopReason::Cancelled) };
        match run.admit(policy, &clock, &mut ThreadRandom) {
            Admission::Go { deadline } => {
                (self.inside, self.deadline, self.hint) = (true, deadline, None);
                Begin::Call
            }
            Admission::Wait(until) => Begin::Wait(until),
            Admission::Stop(reason) => Begin::Stop(reason),
        }
    }

    /// Applies the options of the call site and the outer scope to the run.
    #[inline(never)]
    fn look_around(&mut self) {
        let outer = scope::current();
        let Some(run) = &mut self.run else { return };
        self.nested = outer
            .filter(|outer| outer.repeats() && !self.terms.independent)
            .map(|outer| outer.attempt().overall());
        if let Some(overall) = self.nested {
            let payer = payer(self.policy.borrow());
            run.nested(overall, payer != 0 && outer.is_some_and(|outer| outer.payer() == payer));
        }
        if self.terms.only_once {
            run.only_once();
        }
        if let Some(deadline) = self.terms.deadline {
            run.deadline(moment(deadline));
        }
        if let Some(deadline) = outer.and_then(|outer| outer.deadline()) {
            run.deadline(deadline);
        }
    }

    /// The attempt in progress.
    #[inline(always)]
    pub(crate) fn attempt(&self) -> Attempt {
        let (number, max) = self.run.as_ref().map_or((0, 0), |run| (run.attempts(), run.attempts_max()));
        Attempt { number, max, overall: self.nested.unwrap_or(number), deadline: self.deadline }
    }

    /// Enters the scope of the attempt in progress, until the returned guard is dropped.
    #[inline(always)]
    pub(crate) fn enter<'a>(&'a mut self, outer: &'a mut Option<RetryScope>) -> Inside<'a> {
        let attempt = self.attempt();
        let payer = payer(self.policy.borrow());
        scope::enter(attempt, self.nested.is_some() || attempt.max > 1, payer, &mut self.hint, outer)
    }

    /// Whether an attempt is in progress.
    pub(crate) const fn is_inside(&self) -> bool {
        self.inside
    }

    /// The deadline of the attempt in progress.
    pub(crate) const fn deadline(&self) -> Option<Moment> {
        self.deadline
    }

    /// Ends the call with a success.
    #[inline(always)]
    pub(crate) fn succeed(&mut self) -> Report {
        (self.inside, self.over) = (false, true);
        let policy = self.policy.borrow();
        match &mut self.run {
            Some(run) => run.succeed(policy, &clock),
            None => Run::new(policy).report(StopReason::Succeeded),
        }
    }

    /// What happened, of a call that ended for this reason.
    pub(crate) fn report(&self, reason: StopReason) -> Report {
        match &self.run {
            Some(run) => run.report(reason),
            None => Run::new(self.policy.borrow()).report(reason),
        }
    }

    /// The attempt did not work, or the judge says so.
    pub(crate) fn settle(&mut self, outcome: Outcome) -> Next {
        self.inside = false;
        let outcome = self.not_before_what_was_asked(outcome);
        let Some(run) = &mut self.run else { return Next::Stop(StopReason::Cancelled) };
        let forbidden = self.hint.and_then(RetryHint::reason);
        match run.settle(self.policy.borrow(), outcome, forbidden, &clock, &mut ThreadRandom) {
            Verdict::Done => Next::Stop(StopReason::Succeeded),
            Verdict::Drop => Next::Stop(StopReason::Dropped),
            Verdict::Dead(reason) => Next::Stop(reason),
            Verdict::RetryAt(at) => Next::Wait(at),
        }
    }

    /// The other side may have asked for a wait: of this attempt, which then passes it on, or of an inner retry,
    /// whose error the outer classifier may not understand.
    fn not_before_what_was_asked(&mut self, outcome: Outcome) -> Outcome {
        let Outcome::Classified(Disposition::Retry(mut again)) = outcome else { return outcome };
        let inside = match self.hint {
            Some(RetryHint::LeaveAlone(_)) => return outcome,
            Some(RetryHint::NotBefore(at)) => Some(at.since(clock())),
            None => None,
        };
        again.not_before = again.not_before.max(inside);
        self.hint = again.not_before.map(|wait| RetryHint::NotBefore(clock() + wait));
        Outcome::Classified(Disposition::Retry(again))
    }

    pub(crate) fn end(&mut self, reason: StopReason) -> Report {
        self.over = true;
        let policy = self.policy.borrow();
        let run = self.run.get_or_insert_with(|| Run::new(policy));
        let report = run.end(policy, reason, &clock);
        if !matches!(reason, StopReason::Succeeded | StopReason::Dropped) {
            self.advise_outer(&report);
        }
        report
    }

    /// The driver gave up in the middle of an attempt: its outcome is unknown.
    pub(crate) fn tear(&mut self) {
        if self.inside
            && let Some(run) = &mut self.run
        {
            run.tear();
            self.inside = false;
        }
    }

    /// Passes a hint to outer retries. Layers must not multiply: a call that has exhausted its retries says so,
    /// unless it is independent, and passes on the hints of inner calls.
    fn advise_outer(&self, report: &Report) {
        if self.terms.independent {
            return;
        }
        let in_vain =
            matches!(report.reason, StopReason::AttemptsSpent | StopReason::TimeSpent) && report.attempts > 1;
        let told = self.hint.and_then(RetryHint::reason).is_some();
        if report.reason.forbids_outer_retry() || in_vain || told {
            scope::forbid_outer_retry(report.reason);
        } else if let Some(RetryHint::NotBefore(at)) = self.hint {
            scope::ask_not_before(at);
        }
    }
}

/// A call dropped before its end was cancelled, and its observers are notified. The outcome of an attempt in progress
/// is then unknown. Outer retries get no hint: they may differ from those at the start.
impl<P: Borrow<Policy>> Drop for CallState<P> {
    #[inline]
    fn drop(&mut self) {
        if !self.over && self.run.is_some() {
            self.torn();
        }
    }
}

impl<P: Borrow<Policy>> CallState<P> {
    #[cold]
    fn torn(&mut self) {
        self.tear();
        let Some(run) = &mut self.run else { return };
        run.end(self.policy.borrow(), StopReason::Cancelled, &clock);
    }
}
