//! The state machine of one call's attempts.
//!
//! A [`Run`] is the state of one call: the number of attempts, when they began, and their results so far. The
//! caller asks whether an attempt may start ([`Run::admit`]) and reports its result ([`Run::settle`]); the
//! run answers with what to do next. A run never waits and never calls: the entry points around it (async,
//! blocking, tower) do that, and nothing else.
//!
//! The path of a first-try success reads neither the clock nor the random source, unless the policy has a
//! time limit, a rate or an observer that needs them.

use std::time::Duration;

use crate::breaker::{Breaker, BreakerPermit};
use crate::disposition::{Disposition, Executed, Fault};
use crate::limit::Permit;
use crate::moment::{Clock, Moment};
use crate::observe::{AttemptFinished, Outcome, RetryScheduled, RunFinished};
use crate::policy::Policy;
use crate::random::{RandomSource, SeededRandom};
use crate::report::{Report, StopReason};

mod says;

use says::class;
pub(crate) use says::{Health, executed, health, load};

/// The policy's decision about an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It worked; nothing is left to do.
    Done,
    /// Retry, not before this moment.
    RetryAt(Moment),
    /// No further attempt.
    Dead(StopReason),
    /// Dropped as not needed.
    Drop,
}

/// Whether an attempt may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It may start now. If there is a `deadline`, end the attempt at it.
    Go {
        /// When the attempt must end.
        deadline: Option<Moment>,
    },
    /// Not before this moment; ask again then.
    Wait(Moment),
    /// Not at all.
    Stop(StopReason),
}

/// The state of the attempts so far, as input to a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryState {
    /// The attempts started.
    pub attempts: u32,
    /// The most attempts that may be started.
    pub attempts_max: u32,
    /// Whether an outer retry makes the other attempts, while this budget pays for them.
    pub nested: bool,
    /// When the first attempt started, if the policy limits the time.
    pub started: Option<Moment>,
    /// No attempt starts after this.
    pub deadline: Option<Moment>,
    /// The wait before the last attempt.
    pub previous: Duration,
}

/// The state of one call under a policy.
///
/// ```
/// use redrive_core::run::{Admission, Run, Verdict};
/// use redrive_core::{Fault, Moment, Policy, SeededRandom};
///
/// let policy = Policy::default();
/// let (now, mut random) = (Moment::from_nanos(0), SeededRandom::new(1));
/// let mut run = Run::new(&policy);
///
/// assert_eq!(run.admit(&policy, &now, &mut random), Admission::Go { deadline: None });
/// let verdict = run.settle(&policy, Fault::transient(), None, &now, &mut random);
/// assert!(matches!(verdict, Verdict::RetryAt(_)));
/// ```
#[derive(Debug)]
pub struct Run {
    attempts: u32,
    attempts_max: u32,
    deadline: Option<Moment>,
    /// Whether an outer retry makes the other attempts, while this budget pays for them.
    nested: bool,
    /// Whether this is not a first attempt and therefore deposits nothing into the budget.
    repeated: bool,
    /// Whether the breaker was closed when it let the attempt through.
    through_closed: bool,
    /// State that a first-try success under a plain policy does not need, so that most runs never write it.
    more: Option<More>,
}

/// The state of a run after a failure, or under a policy with limits or observers.
#[derive(Debug, Default)]
struct More {
    started: Option<Moment>,
    previous: Duration,
    waited: Duration,
    /// When the last wait ends.
    until: Option<Moment>,
    /// The moment that the rate limit has reserved for the next attempt.
    turn: Option<Moment>,
    /// Whether an attempt left its effect unknown.
    unsure: bool,
    timed_out: bool,
    /// Its own random source, if the policy is seeded.
    seeded: Option<SeededRandom>,
    /// When the running attempt began, if an observer needs it.
    began: Option<Moment>,
    /// Whether the running attempt's time limit is the caller's deadline and not `attempt_time`.
    hurried: bool,
    pass: Option<BreakerPermit>,
    permit: Option<Permit>,
}

impl Run {
    /// A call without any attempt so far.
    #[must_use]
    #[inline]
    pub fn new(policy: &Policy) -> Self {
        Self {
            attempts: 0,
            attempts_max: policy.settings().attempts,
            deadline: None,
            nested: false,
            repeated: false,
            through_closed: false,
            more: None,
        }
    }

    /// Limits the call to one attempt, because it cannot be repeated.
    pub fn only_once(&mut self) {
        self.attempts_max = 1;
    }

    /// Limits the call to one attempt, because an outer retry, which is on its `overall`th attempt, makes the
    /// others. The budget behaves as if they were made here: the first attempt deposits, and a retryable
    /// failure withdraws or is refused. `same_budget` means that the outer retry shares the budget and does
    /// both itself.
    pub fn nested(&mut self, overall: u32, same_budget: bool) {
        self.only_once();
        (self.nested, self.repeated) = (!same_budget, same_budget || overall > 1);
    }

    /// Sets a deadline after which no attempt starts. The earliest of several holds.
    pub fn deadline(&mut self, deadline: Moment) {
        let earliest = self.deadline.map_or(deadline, |earlier| earlier.min(deadline));
        self.deadline = Some(earliest);
    }

    /// Attempts started so far; inside an attempt, its number.
    #[must_use]
    #[inline]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The most attempts that may be started.
    #[must_use]
    #[inline]
    pub fn attempts_max(&self) -> u32 {
        self.attempts_max
    }

    /// Asks to start the next attempt.
    ///
    /// The part that most calls need is short and is inlined into every call site; the rest is not.
    #[inline(always)]
    pub fn admit(
        &mut self,
        policy: &Policy,
        clock: &impl Clock,
        random: &mut impl RandomSource,
    ) -> Admission {
        if !policy.is_plain() || self.deadline.is_some() {
            return self.admit_within_limits(policy, clock, random);
        }
        if let Err(reason) = self.pass_breaker(policy, clock) {
            return Admission::Stop(reason);
        }
        self.count(policy, clock);
        Admission::Go { deadline: None }
    }

    #[inline(never)]
    fn admit_within_limits(
        &mut self,
        policy: &Policy,
        clock: &impl Clock,
        random: &mut impl RandomSource,
    ) -> Admission {
        if policy.settings().time.is_some() && self.history().started.is_none() {
            self.more().started = Some(clock.now());
        }
        let history = self.history();
        let limited = history.deadline.is_some() || history.started.is_some();
        if limited && let Some(reason) = policy.too_late(&history, clock.now()) {
            return Admission::Stop(reason);
        }
        if let Some(rate) = policy.rate() {
            let now = clock.now();
            // Do not wait for the rate limit, or spend it, only to be refused by the breaker.
            if policy.breaker().and_then(Breaker::open_until).is_some_and(|until| until > now) {
                return Admission::Stop(StopReason::BreakerOpen);
            }
            let turn = match self.more().turn {
                Some(turn) => turn,
                None => match rate.reserve(now, |at| policy.too_late(&history, at).is_none()) {
                    Ok(turn) => turn,
                    Err(at) => {
                        let reason = policy.too_late(&history, at);
                        return Admission::Stop(reason.unwrap_or(StopReason::Deadline));
                    }
                },
            };
            if turn > now {
                if self.more().turn.replace(turn).is_none() {
                    self.wait(turn, now);
                }
                return Admission::Wait(turn);
            }
            self.more().turn = None;
        }
        if let Err(reason) = self.pass_breaker(policy, clock) {
            return Admission::Stop(reason);
        }
        self.count(policy, clock);
        if let Some(limit) = policy.limit() {
            let permit = limit.acquire();
            if permit.is_none() {
                return self.refused(policy, clock, random);
            }
            self.more().permit = permit;
        }
        if !policy.observers().is_empty() {
            self.more().began = Some(clock.now());
        }
        Admission::Go { deadline: self.attempt_end(policy, clock) }
    }

    /// Asks the breaker, if there is one. A closed breaker is only read: a pass would count references.
    #[inline(always)]
    fn pass_breaker(&mut self, policy: &Policy, clock: &impl Clock) -> Result<(), StopReason> {
        let Some(breaker) = policy.breaker() else { return Ok(()) };
        self.through_closed = breaker.is_closed();
        if self.through_closed { Ok(()) } else { self.probe(breaker, clock) }
    }

    #[inline(never)]
    fn probe(&mut self, breaker: &Breaker, clock: &impl Clock) -> Result<(), StopReason> {
        self.more().pass = Some(breaker.admit(clock).map_err(|_| StopReason::BreakerOpen)?);
        Ok(())
    }

    /// Counts an attempt that starts. The first one makes its deposit here and not at the first `admit`,
    /// because an attempt that waits for the rate asks twice, and a call that the breaker refuses is no
    /// attempt.
    #[inline(always)]
    fn count(&mut self, policy: &Policy, clock: &impl Clock) {
        self.attempts += 1;
        if self.attempts == 1
            && !self.repeated
            && let Some(budget) = policy.budget()
        {
            budget.deposit(clock);
        }
    }

    /// The limit is full: the attempt was refused immediately and may be made later.
    fn refused(&mut self, policy: &Policy, clock: &impl Clock, random: &mut impl RandomSource) -> Admission {
        // The downstream was not called, so the breaker records nothing.
        self.more().pass = None;
        self.through_closed = false;
        match self.settle(policy, Fault::overload(), None, clock, random) {
            Verdict::RetryAt(at) => Admission::Wait(at),
            Verdict::Dead(reason) => Admission::Stop(reason),
            Verdict::Done | Verdict::Drop => Admission::Stop(StopReason::AttemptsSpent),
        }
    }

    /// Records a wait and returns its length.
    fn wait(&mut self, until: Moment, now: Moment) -> Duration {
        let delay = until.since(now);
        let more = self.more();
        more.waited = more.waited.saturating_add(delay);
        more.until = Some(until);
        delay
    }

    /// When the attempt must end: at its own time limit or at the caller's deadline.
    fn attempt_end(&mut self, policy: &Policy, clock: &impl Clock) -> Option<Moment> {
        let settings = policy.settings();
        let RetryState { started, deadline, .. } = self.history();
        let in_all = started.zip(settings.time).map(|(started, time)| started + time);
        let patience = [deadline, in_all].into_iter().flatten().min();
        let own = settings.attempt_time.map(|time| clock.now() + time);
        self.more().hurried = own.is_none_or(|own| patience.is_some_and(|patience| patience < own));
        [patience, own].into_iter().flatten().min()
    }

    /// Reports a success and ends the run: [`settle`](Self::settle) and [`end`](Self::end) in one, for the
    /// most common case.
    #[inline]
    pub fn succeed(&mut self, policy: &Policy, clock: &impl Clock) -> Report {
        if policy.is_plain() && self.more.is_none() {
            self.tell_closed_breaker(policy, false, clock);
            return self.report(StopReason::Succeeded);
        }
        self.worked(policy, clock);
        self.end(policy, StopReason::Succeeded, clock)
    }

    #[inline(never)]
    fn worked(&mut self, policy: &Policy, clock: &impl Clock) {
        self.tell(policy, Outcome::Classified(Disposition::Ok), clock);
        if let Some(more) = &mut self.more {
            more.timed_out = false;
        }
    }

    /// Reports the result of the attempt and returns what to do next.
    ///
    /// `forbidden` is the reason why an inner layer wants no more calls to the downstream: a failed attempt
    /// is then the last one, whatever the classifier says.
    pub fn settle(
        &mut self,
        policy: &Policy,
        outcome: impl Into<Outcome>,
        forbidden: Option<StopReason>,
        clock: &impl Clock,
        random: &mut impl RandomSource,
    ) -> Verdict {
        let outcome = outcome.into();
        if let Outcome::Classified(Disposition::Ok) = outcome {
            self.worked(policy, clock);
            return Verdict::Done;
        }
        self.tell(policy, outcome, clock);
        let more = self.more();
        more.timed_out = outcome == Outcome::TimedOut;
        more.unsure |= executed(outcome) == Executed::Unknown;
        // A failure that would not be retried anyway keeps its own reason, so that it can be found.
        if let Some(reason) = forbidden
            && matches!(outcome, Outcome::TimedOut | Outcome::Classified(Disposition::Retry(_)))
        {
            return Verdict::Dead(reason);
        }
        let now = clock.now();
        let verdict = self.decide(policy, outcome, now, random);
        if let Verdict::RetryAt(at) = verdict {
            let delay = self.wait(at, now);
            self.more().previous = delay;
            let class = class(outcome);
            let attempt = self.attempts;
            for observer in policy.observers() {
                observer.waiting(RetryScheduled { policy, attempt, class, delay });
            }
        }
        verdict
    }

    fn decide(
        &mut self,
        policy: &Policy,
        outcome: Outcome,
        now: Moment,
        random: &mut impl RandomSource,
    ) -> Verdict {
        let history = self.history();
        let seeded = &mut self.more().seeded;
        if seeded.is_none() {
            *seeded = policy.seeded();
        }
        match seeded {
            Some(seeded) => policy.decide(&history, outcome, now, seeded),
            None => policy.decide(&history, outcome, now, random),
        }
    }

    fn history(&self) -> RetryState {
        let Self { attempts, attempts_max, nested, deadline, .. } = *self;
        let (started, previous) =
            self.more.as_ref().map(|more| (more.started, more.previous)).unwrap_or_default();
        RetryState { attempts, attempts_max, nested, started, deadline, previous }
    }

    fn more(&mut self) -> &mut More {
        self.more.get_or_insert_default()
    }

    /// Releases what the attempt held, and reports its result to breaker, limit and observers.
    fn tell(&mut self, policy: &Policy, outcome: Outcome, clock: &impl Clock) {
        let More { pass, permit, began, hurried, .. } = self.more();
        let (pass, permit, began, hurried) = (pass.take(), permit.take(), began.take(), *hurried);
        match (health(outcome, hurried), pass) {
            (Health::Well, Some(pass)) => pass.succeeded(),
            (Health::Unwell, Some(pass)) => pass.failed(clock.now()),
            (Health::Well, None) => self.tell_closed_breaker(policy, false, clock),
            (Health::Unwell, None) => self.tell_closed_breaker(policy, true, clock),
            (Health::Unsaid, _) => {}
        }
        if let Some(permit) = permit {
            permit.settle(load(outcome, hurried));
        }
        if !policy.observers().is_empty() {
            let took = began.map_or(Duration::ZERO, |began| clock.now().since(began));
            let attempt = self.attempts;
            for observer in policy.observers() {
                observer.attempted(AttemptFinished { policy, attempt, outcome, took });
            }
        }
    }

    #[inline]
    fn tell_closed_breaker(&self, policy: &Policy, failed: bool, clock: &impl Clock) {
        if self.through_closed
            && let Some(breaker) = policy.breaker()
        {
            breaker.settle_closed(failed, clock);
        }
    }

    /// Reports that the running attempt was cancelled: whether it took effect stays unknown.
    pub fn tear(&mut self) {
        let more = self.more();
        more.unsure = true;
        (more.pass, more.permit) = (None, None);
    }

    /// Ends the run: notifies the observers and returns the report.
    pub fn end(&mut self, policy: &Policy, reason: StopReason, clock: &impl Clock) -> Report {
        // The rest of an interrupted wait does not count as waited.
        if reason == StopReason::Cancelled
            && let Some(more) = &mut self.more
            && let Some(until) = more.until.take()
        {
            more.waited = more.waited.saturating_sub(until.since(clock.now()));
        }
        let report = self.report(reason);
        // A call that unwinds by a panic notifies no observer: the panic may have been an observer's, and a
        // second one aborts.
        if !policy.observers().is_empty() && !std::thread::panicking() {
            let now = clock.now();
            for observer in policy.observers() {
                observer.ended(RunFinished { policy, report: &report, now });
            }
        }
        report
    }

    /// The report of a run that ended now for this reason.
    #[must_use]
    #[inline]
    pub fn report(&self, reason: StopReason) -> Report {
        let attempts = self.attempts;
        let Some(More { waited, unsure, timed_out, .. }) = self.more else {
            return Report {
                reason,
                attempts,
                waited: Duration::ZERO,
                executed: Executed::No,
                timed_out: false,
            };
        };
        let executed = if unsure { Executed::Unknown } else { Executed::No };
        Report { reason, attempts, waited, executed, timed_out }
    }
}
