//! What the doors have in common: a run, the scope around it, and the scope that it is for others.

use std::borrow::Borrow;
use std::mem;
use std::time::Instant;

use redrive_core::observe::Outcome;
use redrive_core::run::{Admission, Run, Verdict};
use redrive_core::{Budget, Disposition, Moment, Policy, Report, StopReason};

use crate::attempt::Attempt;
use crate::clock::{ThreadDice, clock, moment};
use crate::scope::{self, Inside, Plea, Scope};

/// What a call site says beside the policy.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Terms {
    /// Retry also inside another retry.
    pub(crate) independent: bool,
    /// Make one attempt whatever the policy says: the call cannot be repeated.
    pub(crate) only_once: bool,
    pub(crate) deadline: Option<Instant>,
}

impl Terms {
    /// Whether the call site says anything at all.
    #[inline(always)]
    const fn are_special(&self) -> bool {
        self.independent | self.only_once | self.deadline.is_some()
    }
}

/// One call on its way. `P` is a policy or a reference to one.
#[derive(Debug)]
pub(crate) struct Course<P: Borrow<Policy>> {
    policy: P,
    terms: Terms,
    run: Option<Run>,
    /// Whether it has ended, and the observers were told.
    over: bool,
    /// Whether an attempt is under way.
    inside: bool,
    /// Until when it may run.
    deadline: Option<Moment>,
    /// What a retry inside it asks of those around it; after it, what is asked of those around this call.
    plea: Option<Plea>,
    /// Which attempt somebody further out is on, where somebody repeats.
    nested: Option<u32>,
}

/// Which budget pays for what is repeated under this policy; zero where none does.
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

/// What follows an attempt.
#[derive(Debug)]
pub(crate) enum Next {
    Wait(Moment),
    Stop(StopReason),
}

impl<P: Borrow<Policy>> Course<P> {
    #[inline]
    pub(crate) const fn new(policy: P, terms: Terms) -> Self {
        Self {
            policy,
            terms,
            run: None,
            over: false,
            inside: false,
            deadline: None,
            plea: None,
            nested: None,
        }
    }

    pub(crate) const fn terms_mut(&mut self) -> &mut Terms {
        &mut self.terms
    }

    #[inline(always)]
    pub(crate) fn begin(&mut self) -> Begin {
        let policy = self.policy.borrow();
        if self.run.is_none() {
            // There is none to be dropped, which the compiler does not see.
            mem::forget(self.run.replace(Run::new(policy)));
            if self.terms.are_special() || scope::current().is_some() {
                self.look_around();
            }
        }
        let policy = self.policy.borrow();
        let Some(run) = &mut self.run else { return Begin::Stop(StopReason::Cancelled) };
        match run.admit(policy, &clock, &mut ThreadDice) {
            Admission::Go { deadline } => {
                (self.inside, self.deadline, self.plea) = (true, deadline, None);
                Begin::Call
            }
            Admission::Wait(until) => Begin::Wait(until),
            Admission::Stop(reason) => Begin::Stop(reason),
        }
    }

    /// Puts the run under what the call site and the scope around it say.
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

    /// The attempt under way.
    #[inline(always)]
    pub(crate) fn attempt(&self) -> Attempt {
        let (number, max) = self.run.as_ref().map_or((0, 0), |run| (run.attempts(), run.attempts_max()));
        Attempt { number, max, overall: self.nested.unwrap_or(number), deadline: self.deadline }
    }

    /// Enters the scope of the attempt under way, for as long as what is returned lives.
    #[inline(always)]
    pub(crate) fn enter<'a>(&'a mut self, outer: &'a mut Option<Scope>) -> Inside<'a> {
        let attempt = self.attempt();
        let payer = payer(self.policy.borrow());
        scope::enter(attempt, self.nested.is_some() || attempt.max > 1, payer, &mut self.plea, outer)
    }

    /// Whether an attempt is under way.
    pub(crate) const fn is_inside(&self) -> bool {
        self.inside
    }

    /// Until when the attempt under way may run.
    pub(crate) const fn deadline(&self) -> Option<Moment> {
        self.deadline
    }

    /// The attempt worked, and that is the end of it.
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
        let forbidden = self.plea.and_then(Plea::reason);
        match run.settle(self.policy.borrow(), outcome, forbidden, &clock, &mut ThreadDice) {
            Verdict::Done => Next::Stop(StopReason::Succeeded),
            Verdict::Drop => Next::Stop(StopReason::Discarded),
            Verdict::Dead(reason) => Next::Stop(reason),
            Verdict::RetryAt(at) => Next::Wait(at),
        }
    }

    /// The other side may have asked to be left alone for a while: of this attempt, which then passes it on,
    /// or of a retry inside it, whose error the classifier out here may not understand.
    fn not_before_what_was_asked(&mut self, outcome: Outcome) -> Outcome {
        let Outcome::Said(Disposition::Retry(mut again)) = outcome else { return outcome };
        let inside = match self.plea {
            Some(Plea::LeaveAlone(_)) => return outcome,
            Some(Plea::NotBefore(at)) => Some(at.since(clock())),
            None => None,
        };
        again.not_before = again.not_before.max(inside);
        self.plea = again.not_before.map(|wait| Plea::NotBefore(clock() + wait));
        Outcome::Said(Disposition::Retry(again))
    }

    pub(crate) fn end(&mut self, reason: StopReason) -> Report {
        self.over = true;
        let policy = self.policy.borrow();
        let run = self.run.get_or_insert_with(|| Run::new(policy));
        let report = run.end(policy, reason, &clock);
        if !matches!(reason, StopReason::Succeeded | StopReason::Discarded) {
            self.plead(&report);
        }
        report
    }

    /// Whoever drives it gives up in the middle of an attempt: nobody will learn whether it took effect.
    pub(crate) fn tear(&mut self) {
        if self.inside
            && let Some(run) = &mut self.run
        {
            run.tear();
            self.inside = false;
        }
    }

    /// Tells those around this call what it learned. Layers do not multiply: whoever has retried in vain says
    /// so, unless it asked to be left out of it, and whoever was told something passes it on.
    fn plead(&self, report: &Report) {
        if self.terms.independent {
            return;
        }
        let in_vain =
            matches!(report.reason, StopReason::AttemptsSpent | StopReason::TimeSpent) && report.attempts > 1;
        let told = self.plea.and_then(Plea::reason).is_some();
        if report.reason.forbids_outer_retry() || in_vain || told {
            scope::forbid_outer_retry(report.reason);
        } else if let Some(Plea::NotBefore(at)) = self.plea {
            scope::ask_not_before(at);
        }
    }
}

/// A call that is dropped before it ended was cancelled, and those who observe it hear so. Whether an attempt
/// under way took effect is then unknown. Those around it are told nothing: they may be others than when it
/// began.
impl<P: Borrow<Policy>> Drop for Course<P> {
    #[inline]
    fn drop(&mut self) {
        if !self.over && self.run.is_some() {
            self.torn();
        }
    }
}

impl<P: Borrow<Policy>> Course<P> {
    #[cold]
    fn torn(&mut self) {
        self.tear();
        let Some(run) = &mut self.run else { return };
        run.end(self.policy.borrow(), StopReason::Cancelled, &clock);
    }
}
