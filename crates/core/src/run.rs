//! One call's way through its attempts.
//!
//! A [`Run`] is the state of one call: how many attempts, since when, what they left behind. It is told when
//! an attempt may start ([`Run::admit`]) and how it went ([`Run::settle`]), and answers with what to do next.
//! It never waits and never calls: the doors around it (async, blocking, tower) do, and that is all they do.
//!
//! On the path of a first-try success neither the clock nor the dice are touched, unless the policy has a
//! time limit, a rate or an observer that needs them.

use std::time::Duration;

use crate::breaker::{Breaker, Pass};
use crate::dice::{Dice, Seeded};
use crate::disposition::{Disposition, Executed, Fault};
use crate::limit::Permit;
use crate::moment::{Clock, Moment};
use crate::observe::{Attempted, Ended, Outcome, Waiting};
use crate::policy::Policy;
use crate::report::{Report, StopReason};

mod says;

use says::class;
pub(crate) use says::{Health, executed, health, load};

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
    /// Whether a retry further out makes the other attempts, and this budget pays for them.
    pub nested: bool,
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
    attempts: u32,
    attempts_max: u32,
    deadline: Option<Moment>,
    /// Whether a retry further out makes the other attempts, and we pay for them.
    nested: bool,
    /// Whether this is no first attempt, and earns nothing.
    repeated: bool,
    /// Whether the breaker was closed when the attempt was let through.
    through_closed: bool,
    /// What a first-try success under a plain policy has no use for, so that most runs never write it.
    more: Option<More>,
}

/// What a run remembers once an attempt has failed, or under a policy that limits or is observed.
#[derive(Debug, Default)]
struct More {
    started: Option<Moment>,
    previous: Duration,
    waited: Duration,
    /// When the last wait ends.
    until: Option<Moment>,
    /// The turn that the rate has for the attempt to come.
    turn: Option<Moment>,
    /// Whether an attempt left its effect unknown.
    unsure: bool,
    timed_out: bool,
    /// Dice of its own, where the policy is seeded.
    seeded: Option<Seeded>,
    /// When the attempt under way began, where an observer wants to know.
    began: Option<Moment>,
    /// Whether the attempt under way has its end from the caller's patience and not from `attempt_time`.
    hurried: bool,
    pass: Option<Pass>,
    permit: Option<Permit>,
}

impl Run {
    /// A call that has made no attempt yet.
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

    /// Makes one attempt and no more, because the call cannot be repeated.
    pub fn only_once(&mut self) {
        self.attempts_max = 1;
    }

    /// Makes one attempt and no more, because a retry further out, which is on its `overall`th, makes the
    /// others. The budget goes on as if they were made here: the first of them all earns, and a failure that
    /// may be retried is paid for, or forbidden. Not where the other one has the same budget and does both.
    pub fn nested(&mut self, overall: u32, same_budget: bool) {
        self.only_once();
        (self.nested, self.repeated) = (!same_budget, same_budget || overall > 1);
    }

    /// No attempt makes sense after this moment. The earliest of several holds.
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

    /// How many there may be.
    #[must_use]
    #[inline]
    pub fn attempts_max(&self) -> u32 {
        self.attempts_max
    }

    /// Asks to start the next attempt.
    ///
    /// What most calls need is short, and becomes part of every call site; the rest is not, and stays in one
    /// place.
    #[inline(always)]
    pub fn admit(&mut self, policy: &Policy, clock: &impl Clock, dice: &mut impl Dice) -> Admission {
        if !policy.is_plain() || self.deadline.is_some() {
            return self.admit_within_limits(policy, clock, dice);
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
        dice: &mut impl Dice,
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
            // No use waiting for the rate, or spending it, only to be turned away.
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
                return self.refused(policy, clock, dice);
            }
            self.more().permit = permit;
        }
        if !policy.observers().is_empty() {
            self.more().began = Some(clock.now());
        }
        Admission::Go { deadline: self.attempt_end(policy, clock) }
    }

    /// Asks the breaker, if there is one. A closed one is only looked at: a pass would count references.
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

    /// Counts an attempt that is made. The first one earns its share of a token: here and not at the first
    /// question, because what waits for the rate asks twice, and what the breaker turns away is no attempt.
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

    /// The limit is full: an attempt that was refused on the spot, and may be made later.
    fn refused(&mut self, policy: &Policy, clock: &impl Clock, dice: &mut impl Dice) -> Admission {
        // The other side was not asked, so the breaker hears nothing.
        self.more().pass = None;
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
        let more = self.more();
        more.waited = more.waited.saturating_add(delay);
        more.until = Some(until);
        delay
    }

    /// When the attempt has to be over: its own time is up, or the caller's is.
    fn attempt_end(&mut self, policy: &Policy, clock: &impl Clock) -> Option<Moment> {
        let settings = policy.settings();
        let History { started, deadline, .. } = self.history();
        let in_all = started.zip(settings.time).map(|(started, time)| started + time);
        let patience = [deadline, in_all].into_iter().flatten().min();
        let own = settings.attempt_time.map(|time| clock.now() + time);
        self.more().hurried = own.is_none_or(|own| patience.is_some_and(|patience| patience < own));
        [patience, own].into_iter().flatten().min()
    }

    /// Tells that the attempt worked, and ends the run: [`settle`](Self::settle) and [`end`](Self::end) in
    /// one, for what happens most.
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
        self.tell(policy, Outcome::Said(Disposition::Ok), clock);
        if let Some(more) = &mut self.more {
            more.timed_out = false;
        }
    }

    /// Tells how the attempt went, and asks what now.
    ///
    /// `forbidden` is the reason for which a layer further in wants the downstream left alone: a failed
    /// attempt is then the last one, whatever the classifier says.
    pub fn settle(
        &mut self,
        policy: &Policy,
        outcome: impl Into<Outcome>,
        forbidden: Option<StopReason>,
        clock: &impl Clock,
        dice: &mut impl Dice,
    ) -> Verdict {
        let outcome = outcome.into();
        if let Outcome::Said(Disposition::Ok) = outcome {
            self.worked(policy, clock);
            return Verdict::Done;
        }
        self.tell(policy, outcome, clock);
        let more = self.more();
        more.timed_out = outcome == Outcome::TimedOut;
        more.unsure |= executed(outcome) == Executed::Unknown;
        // What would not be retried anyway ends for its own reason, so that it can be found.
        if let Some(reason) = forbidden
            && matches!(outcome, Outcome::TimedOut | Outcome::Said(Disposition::Retry(_)))
        {
            return Verdict::Dead(reason);
        }
        let now = clock.now();
        let verdict = self.decide(policy, outcome, now, dice);
        if let Verdict::RetryAt(at) = verdict {
            let delay = self.wait(at, now);
            self.more().previous = delay;
            let class = class(outcome);
            let attempt = self.attempts;
            for observer in policy.observers() {
                observer.waiting(Waiting { policy, attempt, class, delay });
            }
        }
        verdict
    }

    fn decide(&mut self, policy: &Policy, outcome: Outcome, now: Moment, dice: &mut impl Dice) -> Verdict {
        let history = self.history();
        let seeded = &mut self.more().seeded;
        if seeded.is_none() {
            *seeded = policy.seeded();
        }
        match seeded {
            Some(seeded) => policy.decide(&history, outcome, now, seeded),
            None => policy.decide(&history, outcome, now, dice),
        }
    }

    fn history(&self) -> History {
        let Self { attempts, attempts_max, nested, deadline, .. } = *self;
        let (started, previous) =
            self.more.as_ref().map(|more| (more.started, more.previous)).unwrap_or_default();
        History { attempts, attempts_max, nested, started, deadline, previous }
    }

    fn more(&mut self) -> &mut More {
        self.more.get_or_insert_default()
    }

    /// Gives back what the attempt held, and tells breaker, limit and observers how it went.
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
                observer.attempted(Attempted { policy, attempt, outcome, took });
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

    /// Tells that the attempt under way was torn off: nobody will learn whether it took effect.
    pub fn tear(&mut self) {
        let more = self.more();
        more.unsure = true;
        (more.pass, more.permit) = (None, None);
    }

    /// Ends the run: tells the observers, and says what happened.
    pub fn end(&mut self, policy: &Policy, reason: StopReason, clock: &impl Clock) -> Report {
        // The rest of a wait that was cut short was not waited.
        if reason == StopReason::Cancelled
            && let Some(more) = &mut self.more
            && let Some(until) = more.until.take()
        {
            more.waited = more.waited.saturating_sub(until.since(clock.now()));
        }
        let report = self.report(reason);
        // A call that is torn by a panic tells nobody: it may have been an observer's, and a second one
        // aborts.
        if !policy.observers().is_empty() && !std::thread::panicking() {
            let now = clock.now();
            for observer in policy.observers() {
                observer.ended(Ended { policy, report: &report, now });
            }
        }
        report
    }

    /// What happened, had it ended now for this reason.
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
