//! One call's way through its attempts.
//!
//! A [`Run`] is the state of one call: how many attempts, since when, what they left behind. It is told when an attempt
//! may start ([`Run::admit`]) and how it went ([`Run::settle`]), and answers with what to do next. It never waits and never
//! calls: the doors around it (async, blocking, tower) do, and that is all they do.
//!
//! On the path of a first-try success neither the clock nor the dice are touched, unless the policy has a time limit, a rate
//! or an observer that needs them.

use std::time::Duration;

use crate::breaker::{Breaker, Pass};
use crate::dice::{Dice, Seeded};
use crate::disposition::{Again, Class, Disposition, Executed, Fault};
use crate::limit::{Load, Permit};
use crate::moment::{Clock, Moment};
use crate::observe::{Attempted, Ended, Outcome, Waiting};
use crate::policy::Policy;
use crate::report::{Report, StopReason};

/// What the policy decides of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It worked; there is nothing left to do.
    Done,
    /// Try again, not before this moment.
    RetryAt(Moment),
    /// It will not be tried again.
    Dead(StopReason),
    /// It is not needed any more.
    Drop,
}

/// Whether an attempt may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Now. Where there is a `deadline`, the attempt is to be ended at it.
    Go {
        /// When the attempt has to be over.
        deadline: Option<Moment>,
    },
    /// Not before this moment; then ask again.
    Wait(Moment),
    /// Not at all.
    Stop(StopReason),
}

/// What a decision needs to know of the attempts so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct History {
    /// Attempts that were started.
    pub attempts: u32,
    /// Attempts that may be started in all.
    pub attempts_max: u32,
    /// When the first one started, where the policy limits the time.
    pub started: Option<Moment>,
    /// After this no attempt makes sense.
    pub deadline: Option<Moment>,
    /// The wait before the last attempt.
    pub previous: Duration,
}

/// The state of one call under a policy.
///
/// ```
/// use redrive_core::run::{Admission, Run, Verdict};
/// use redrive_core::{Fault, Moment, Policy, Seeded};
///
/// let policy = Policy::default();
/// let (now, mut dice) = (Moment::from_nanos(0), Seeded::new(1));
/// let mut run = Run::new(&policy);
///
/// assert_eq!(run.admit(&policy, &now, &mut dice), Admission::Go { deadline: None });
/// let verdict = run.settle(&policy, Fault::transient(), None, &now, &mut dice);
/// assert!(matches!(verdict, Verdict::RetryAt(_)));
/// ```
#[derive(Debug)]
pub struct Run {
    history: History,
    waited: Duration,
    /// When the last wait ends.
    until: Option<Moment>,
    executed: Executed,
    timed_out: bool,
    /// Dice of its own, where the policy is seeded.
    seeded: Option<Seeded>,
    /// When the attempt under way began, where an observer wants to know.
    began: Option<Moment>,
    /// Whether the breaker was closed when the attempt was let through.
    through_closed: bool,
    pass: Option<Pass>,
    permit: Option<Permit>,
}

impl Run {
    /// A call that has made no attempt yet.
    #[must_use]
    pub fn new(policy: &Policy) -> Self {
        Self {
            history: History {
                attempts: 0,
                attempts_max: policy.settings().attempts,
                started: None,
                deadline: None,
                previous: Duration::ZERO,
            },
            waited: Duration::ZERO,
            until: None,
            executed: Executed::No,
            timed_out: false,
            seeded: policy.seeded(),
            began: None,
            through_closed: false,
            pass: None,
            permit: None,
        }
    }

    /// Makes one attempt and no more, because a retry further out makes the others.
    pub fn only_once(&mut self) {
        self.history.attempts_max = 1;
    }

    /// No attempt makes sense after this moment. The earliest of several holds.
    pub fn deadline(&mut self, deadline: Moment) {
        let earliest = self.history.deadline.map_or(deadline, |earlier| earlier.min(deadline));
        self.history.deadline = Some(earliest);
    }

    /// Attempts started so far; inside an attempt, its number.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.history.attempts
    }

    /// How many there may be.
    #[must_use]
    pub fn attempts_max(&self) -> u32 {
        self.history.attempts_max
    }

    /// Asks to start the next attempt.
    pub fn admit(&mut self, policy: &Policy, clock: &impl Clock, dice: &mut impl Dice) -> Admission {
        let settings = policy.settings();
        if settings.time.is_some() && self.history.started.is_none() {
            self.history.started = Some(clock.now());
        }
        let limited = self.history.deadline.is_some() || self.history.started.is_some();
        if limited && let Some(reason) = policy.too_late(&self.history, clock.now()) {
            return Admission::Stop(reason);
        }
        if let Some(rate) = policy.rate() {
            let now = clock.now();
            // No use waiting for the rate, or spending it, only to be turned away.
            if policy.breaker().and_then(Breaker::open_until).is_some_and(|until| until > now) {
                return Admission::Stop(StopReason::BreakerOpen);
            }
            if let Err(free) = rate.take(now) {
                return match policy.too_late(&self.history, free) {
                    Some(reason) => Admission::Stop(reason),
                    None => {
                        self.wait(free, now);
                        Admission::Wait(free)
                    }
                };
            }
        }
        if let Some(breaker) = policy.breaker() {
            self.through_closed = breaker.is_closed();
            if !self.through_closed {
                match breaker.admit(clock) {
                    Ok(pass) => self.pass = Some(pass),
                    Err(_) => return Admission::Stop(StopReason::BreakerOpen),
                }
            }
        }
        self.history.attempts += 1;
        // Here and not at the first question: what waits for the rate asks twice, and what the breaker turns away
        // is no attempt.
        if self.history.attempts == 1
            && let Some(budget) = policy.budget()
        {
            budget.deposit(clock);
        }
        if let Some(limit) = policy.limit() {
            self.permit = limit.acquire();
            if self.permit.is_none() {
                return self.refused(policy, clock, dice);
            }
        }
        if !policy.observers().is_empty() {
            self.began = Some(clock.now());
        }
        Admission::Go { deadline: self.attempt_deadline(policy, clock) }
    }

    /// The limit is full: an attempt that was refused on the spot, and may be made later.
    fn refused(&mut self, policy: &Policy, clock: &impl Clock, dice: &mut impl Dice) -> Admission {
        // The other side was not asked, so the breaker hears nothing.
        self.pass = None;
        self.through_closed = false;
        match self.settle(policy, Fault::overload(), None, clock, dice) {
            Verdict::RetryAt(at) => Admission::Wait(at),
            Verdict::Dead(reason) => Admission::Stop(reason),
            Verdict::Done | Verdict::Drop => Admission::Stop(StopReason::AttemptsSpent),
        }
    }

    /// Notes a wait, and says how long it is.
    fn wait(&mut self, until: Moment, now: Moment) -> Duration {
        let delay = until.since(now);
        self.waited += delay;
        self.until = Some(until);
        delay
    }

    fn attempt_deadline(&self, policy: &Policy, clock: &impl Clock) -> Option<Moment> {
        let settings = policy.settings();
        let ends = [
            self.history.deadline,
            self.history.started.zip(settings.time).map(|(started, time)| started + time),
            settings.attempt_time.map(|time| clock.now() + time),
        ];
        ends.into_iter().flatten().min()
    }

    /// Tells how the attempt went, and asks what now.
    ///
    /// `forbidden` is the reason for which a layer further in wants the downstream left alone: a failed attempt is
    /// then the last one, whatever the classifier says.
    pub fn settle(
        &mut self,
        policy: &Policy,
        outcome: impl Into<Outcome>,
        forbidden: Option<StopReason>,
        clock: &impl Clock,
        dice: &mut impl Dice,
    ) -> Verdict {
        let outcome = outcome.into();
        self.release(policy, outcome, clock);
        if !policy.observers().is_empty() {
            self.tell(policy, outcome, clock.now());
        }
        self.timed_out = outcome == Outcome::TimedOut;
        if let Outcome::Said(Disposition::Ok) = outcome {
            return Verdict::Done;
        }
        self.executed = match (self.executed, executed(outcome)) {
            (Executed::No, Executed::No) => Executed::No,
            _ => Executed::Unknown,
        };
        if let Some(reason) = forbidden
            && outcome != Outcome::Said(Disposition::Discard)
        {
            return Verdict::Dead(reason);
        }
        let now = clock.now();
        let verdict = self.decide(policy, outcome, now, dice);
        if let Verdict::RetryAt(at) = verdict {
            let delay = self.wait(at, now);
            self.history.previous = delay;
            let class = class(outcome);
            let attempt = self.history.attempts;
            for observer in policy.observers() {
                observer.waiting(Waiting { policy, attempt, class, delay });
            }
        }
        verdict
    }

    fn decide(&mut self, policy: &Policy, outcome: Outcome, now: Moment, dice: &mut impl Dice) -> Verdict {
        match &mut self.seeded {
            Some(seeded) => policy.decide(&self.history, outcome, now, seeded),
            None => policy.decide(&self.history, outcome, now, dice),
        }
    }

    /// Gives back what the attempt held, and tells breaker and limit how it went.
    fn release(&mut self, policy: &Policy, outcome: Outcome, clock: &impl Clock) {
        let unwell = matches!(outcome, Outcome::TimedOut | Outcome::Said(Disposition::Retry(_)));
        if let Some(pass) = self.pass.take() {
            if unwell {
                pass.failed(clock.now());
            } else {
                pass.succeeded();
            }
        } else if let Some(breaker) = policy.breaker()
            && self.through_closed
        {
            breaker.settle_closed(unwell, clock);
        }
        if let Some(permit) = self.permit.take() {
            permit.settle(match outcome {
                Outcome::TimedOut => Load::TooMuch,
                Outcome::Said(Disposition::Retry(Again { class: Class::Overload, .. })) => Load::TooMuch,
                Outcome::Said(Disposition::Ok) => Load::Fine,
                _ => Load::Unsaid,
            });
        }
    }

    fn tell(&mut self, policy: &Policy, outcome: Outcome, now: Moment) {
        let took = self.began.take().map_or(Duration::ZERO, |began| now.since(began));
        let attempt = self.history.attempts;
        for observer in policy.observers() {
            observer.attempted(Attempted { policy, attempt, outcome, took });
        }
    }

    /// Ends the run: tells the observers, and says what happened.
    pub fn end(&mut self, policy: &Policy, reason: StopReason, clock: &impl Clock) -> Report {
        // The rest of a wait that was cut short was not waited.
        if reason == StopReason::Cancelled
            && let Some(until) = self.until.take()
        {
            self.waited = self.waited.saturating_sub(until.since(clock.now()));
        }
        let report = self.report(reason);
        if !policy.observers().is_empty() {
            let now = clock.now();
            for observer in policy.observers() {
                observer.ended(Ended { policy, report: &report, now });
            }
        }
        report
    }

    /// What happened, had it ended now for this reason.
    #[must_use]
    pub fn report(&self, reason: StopReason) -> Report {
        Report {
            reason,
            attempts: self.history.attempts,
            waited: self.waited,
            executed: self.executed,
            timed_out: self.timed_out,
        }
    }
}

fn executed(outcome: Outcome) -> Executed {
    match outcome {
        Outcome::Said(Disposition::Retry(again)) => again.executed,
        Outcome::Said(Disposition::Permanent(executed)) => executed,
        Outcome::Said(Disposition::Ok | Disposition::Discard) => Executed::No,
        Outcome::Unclassified | Outcome::TimedOut => Executed::Unknown,
    }
}

fn class(outcome: Outcome) -> Class {
    match outcome {
        Outcome::Said(Disposition::Retry(again)) => again.class,
        _ => Class::Transient,
    }
}

impl From<Disposition> for Outcome {
    fn from(disposition: Disposition) -> Self {
        Self::Said(disposition)
    }
}

impl From<Fault> for Outcome {
    fn from(fault: Fault) -> Self {
        Self::Said(fault.into())
    }
}

impl From<Option<Disposition>> for Outcome {
    fn from(known: Option<Disposition>) -> Self {
        known.map_or(Self::Unclassified, Self::Said)
    }
}
