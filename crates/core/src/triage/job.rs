//! A change to many dead letters, or to many retrying events, that runs in the background.
//!
//! The store commits a job's progress with each of its steps, and the next step is a function of that
//! progress and the time. A job therefore continues after a restart, and repeating a step has no effect: each
//! step names the position from which it continues.
//!
//! A job takes only dead letters that died before it began, judged by the number of their death and not by
//! the clock. A dead letter that another job redrove, and that died again, is therefore not redriven a second
//! time. Of retrying events it takes those whose first attempt was before it began.

use std::time::Duration;

use super::{Filter, RedriveOptions};
use crate::moment::Moment;
use crate::queue_entry::Seq;

/// The most events that a step takes.
pub const STEP_MAX: u32 = 1_000;
/// The shortest time between two steps, if there is a rate.
const STEP_TIME: Duration = Duration::from_millis(100);
/// How much of a rate may be made up for at once, after late steps. Older unused time, because the job waited
/// for its canary or no node was running it, is lost: a rate is a promise to the downstream.
const BURST: Duration = Duration::from_secs(1);
/// How many events must have ended before a job without a canary is judged.
const JUDGED_MIN: u64 = 20;

/// The number of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct JobId(pub u64);

/// What a job does to each event.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum JobAct {
    /// Redrives it.
    Redrive(RedriveOptions),
    /// Discards it; an operator can restore it for a time.
    Discard,
    /// Retries a retrying event (not a dead letter) immediately, outside the retry budget. Its attempts keep
    /// counting.
    RetryNow,
}

impl JobAct {
    /// The word in the audit log.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Redrive(_) => "redrive",
            Self::Discard => "discard",
            Self::RetryNow => "retry-now",
        }
    }

    /// Whether it makes events run, so that the job waits for their outcomes.
    #[must_use]
    pub const fn runs(&self) -> bool {
        matches!(self, Self::Redrive(_) | Self::RetryNow)
    }
}

/// How fast a job goes, and when it stops.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct JobStrategy {
    /// How many events a second; `None` for no limit.
    pub rate: Option<f64>,
    /// How long the rate takes to grow from zero to its full value, in milliseconds.
    pub ramp_ms: u64,
    /// How many events go first; the others follow when all of them have ended and not too many have failed
    /// again.
    pub canary: Option<u32>,
    /// The share that may fail again, from 0 to 1; above it the job stops. With a canary and without this
    /// share, no event of the canary may fail.
    pub stop_at: Option<f64>,
}

impl JobStrategy {
    /// Checks the numbers.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn check(&self) -> Result<(), String> {
        if self.rate.is_some_and(|rate| !rate.is_finite() || rate <= 0.0) {
            return Err("the rate must be a number above 0".to_owned());
        }
        if self.stop_at.is_some_and(|share| !(0.0..=1.0).contains(&share)) {
            return Err("the share at which to stop must be between 0 and 1".to_owned());
        }
        if self.canary == Some(0) {
            return Err("a canary of 0 tests nothing; use at least 1".to_owned());
        }
        if self.ramp_ms > 0 && self.rate.is_none() {
            return Err("a ramp needs a rate; set one".to_owned());
        }
        Ok(())
    }

    /// How many events the job may have taken after this time.
    fn allowed(&self, elapsed: Duration) -> f64 {
        let Some(rate) = self.rate else { return f64::INFINITY };
        let (elapsed, ramp) = (elapsed.as_secs_f64(), Duration::from_millis(self.ramp_ms).as_secs_f64());
        // On the ramp the rate grows linearly, so the count grows with the square of the time.
        if elapsed < ramp { rate * elapsed * elapsed / (2.0 * ramp) } else { rate * (elapsed - ramp / 2.0) }
    }

    /// The shortest time for this many events.
    #[must_use]
    pub fn time_for(&self, letters: u64) -> Duration {
        let Some(rate) = self.rate else { return Duration::ZERO };
        let (letters, ramp) = (as_f64(letters), Duration::from_millis(self.ramp_ms).as_secs_f64());
        let on_ramp = rate * ramp / 2.0;
        let seconds = if letters < on_ramp {
            (2.0 * ramp * letters / rate).sqrt()
        } else {
            letters / rate + ramp / 2.0
        };
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
}

/// The plan of a job.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct JobPlan {
    /// Which events.
    pub filter: Filter,
    /// What to do to each.
    pub act: JobAct,
    /// How fast.
    pub strategy: JobStrategy,
}

/// The state of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobState {
    /// It runs.
    Running,
    /// An operator paused it.
    Paused,
    /// It has finished.
    Done,
    /// An operator cancelled it.
    Cancelled,
    /// It stopped itself, because too many events failed again.
    Stopped,
}

impl JobState {
    /// All states.
    pub const ALL: [Self; 5] = [Self::Running, Self::Paused, Self::Done, Self::Cancelled, Self::Stopped];

    /// The word in the store and in API answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Done => "done",
            Self::Cancelled => "cancelled",
            Self::Stopped => "stopped",
        }
    }

    /// The state with this word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }

    /// Whether the job has ended.
    #[must_use]
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Cancelled | Self::Stopped)
    }
}

/// A job, as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Its number.
    pub id: JobId,
    /// Its plan.
    pub plan: JobPlan,
    /// Its state.
    pub state: JobState,
    /// Why it is in that state.
    pub why: String,
    /// The operator who started it.
    pub who: String,
    /// When it was started.
    pub started: Moment,
    /// When it last began to run: the rate counts from here.
    pub running_since: Moment,
    /// How many events it had taken when it last began to run.
    pub taken_before: u64,
    /// When it ended.
    pub ended: Option<Moment>,
    /// How many events its filter matched when it was started. If the filter needs a scan, the count covers
    /// the first ten thousand events scanned: a plan counts them all.
    pub planned: u64,
    /// The number of the last death that it includes.
    pub deaths: u64,
    /// The sequence number of the last event that it looked at.
    pub cursor: Option<Seq>,
    /// Whether it has looked at all events.
    pub exhausted: bool,
    /// Events that it changed.
    pub taken: u64,
    /// Events that it skipped because they would run out of order.
    pub skipped: u64,
    /// Changed events that are done since.
    pub done: u64,
    /// Changed events that are dead again; for a retry-now job, those that failed once more.
    pub failed: u64,
    /// Changed events that ended otherwise: dropped, expired, discarded.
    pub other: u64,
}

/// A job's next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobStep {
    /// Take this many events.
    Take(u32),
    /// Wait until this moment, or until something changes.
    Wait(Option<Moment>),
    /// End in this state, for this reason.
    End(JobState, String),
}

impl Job {
    /// A new job for this many events, up to the death with this number.
    #[must_use]
    pub fn begin(id: JobId, plan: JobPlan, who: &str, at: Moment, (planned, deaths): (u64, u64)) -> Self {
        Self {
            id,
            plan,
            state: JobState::Running,
            why: String::new(),
            who: who.to_owned(),
            started: at,
            running_since: at,
            taken_before: 0,
            ended: None,
            planned,
            deaths,
            cursor: None,
            exhausted: false,
            taken: 0,
            skipped: 0,
            done: 0,
            failed: 0,
            other: 0,
        }
    }

    /// Moves it to another state.
    pub fn turn(&mut self, to: JobState, why: &str, at: Moment) {
        self.state = to;
        why.clone_into(&mut self.why);
        if to == JobState::Running {
            self.running_since = at;
            self.taken_before = self.taken;
        }
        self.ended = to.is_over().then_some(at);
    }

    /// How many events it covers: the number taken, or the number planned while it has taken none.
    #[must_use]
    pub const fn letters(&self) -> u64 {
        if self.taken == 0 && !self.state.is_over() { self.planned } else { self.taken }
    }

    /// Changed events that have not ended yet.
    #[must_use]
    pub const fn under_way(&self) -> u64 {
        self.taken.saturating_sub(self.done + self.failed + self.other)
    }

    /// The next step.
    #[must_use]
    pub fn next(&self, now: Moment) -> JobStep {
        if self.state != JobState::Running {
            return JobStep::Wait(None);
        }
        let JobStrategy { canary, .. } = self.plan.strategy;
        let runs = self.plan.act.runs();
        if runs && let Some(why) = self.is_failing() {
            return JobStep::End(JobState::Stopped, why);
        }
        if self.exhausted {
            let over = !runs || self.under_way() == 0;
            return if over { JobStep::End(JobState::Done, String::new()) } else { JobStep::Wait(None) };
        }
        let canary = canary.filter(|_| runs).map(u64::from);
        let most = match canary {
            Some(canary) if self.taken < canary => canary - self.taken,
            Some(canary) if self.taken == canary && self.under_way() > 0 => return JobStep::Wait(None),
            _ => u64::from(STEP_MAX),
        };
        let allowed = self.plan.strategy.allowed(self.earned(now));
        let room = whole(allowed - as_f64(self.since())).min(most).min(u64::from(STEP_MAX));
        match u32::try_from(room) {
            Ok(0) | Err(_) => JobStep::Wait(Some(now + STEP_TIME)),
            Ok(room) => JobStep::Take(room),
        }
    }

    /// Records that it took this many more events. Unused time beyond the burst is lost.
    pub fn took(&mut self, letters: u64, at: Moment) {
        let unused = at.since(self.running_since).saturating_sub(self.earned(at));
        self.running_since = self.running_since + unused;
        self.taken += letters;
    }

    /// How much time it has earned since it last began to run: the time it has used, plus at most a burst.
    fn earned(&self, now: Moment) -> Duration {
        let JobStrategy { rate: Some(_), .. } = self.plan.strategy else {
            return now.since(self.running_since);
        };
        let used = self.plan.strategy.time_for(self.since());
        // At least the time for one event, or a slow rate would never reach it.
        let one = self.plan.strategy.time_for(self.since() + 1).saturating_sub(used);
        let most = used.saturating_add(BURST.max(one.saturating_add(Duration::from_millis(1))));
        now.since(self.running_since).min(most)
    }

    /// How many events it took since it last began to run.
    const fn since(&self) -> u64 {
        self.taken.saturating_sub(self.taken_before)
    }

    /// The reason to stop, if too many events have failed again.
    fn is_failing(&self) -> Option<String> {
        let JobStrategy { canary, stop_at, .. } = self.plan.strategy;
        let ended = self.done + self.failed;
        let is_canary_over = canary.is_some_and(|canary| ended + self.other >= u64::from(canary));
        let share = stop_at.or(canary.map(|_| 0.0))?;
        // A canary without a share is judged once, when all of it has ended.
        if stop_at.is_none() && self.taken > canary.map_or(0, u64::from) {
            return None;
        }
        let enough =
            is_canary_over || (canary.is_none() && ended >= JUDGED_MIN) || (self.exhausted && ended > 0);
        let failing = enough && as_f64(self.failed) > share * as_f64(ended);
        failing.then(|| format!("{} of {ended} failed again", self.failed))
    }
}

#[allow(clippy::cast_precision_loss, reason = "a number of letters is far below 2^53")]
fn as_f64(number: u64) -> f64 {
    number as f64
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "what is below zero or too large stops at the end of the range"
)]
fn whole(number: f64) -> u64 {
    number as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(strategy: JobStrategy) -> Job {
        let act = JobAct::Redrive(RedriveOptions::default());
        let plan = JobPlan { filter: Filter::default(), act, strategy };
        Job::begin(JobId(1), plan, "ada", Moment::default(), (100, 100))
    }

    fn at(seconds: f64) -> Moment {
        Moment::default() + Duration::from_secs_f64(seconds)
    }

    #[test]
    fn a_rate_is_kept_and_a_ramp_leads_to_it() {
        let mut job = job(JobStrategy { rate: Some(10.0), ..JobStrategy::default() });
        assert_eq!(job.next(at(0.0)), JobStep::Wait(Some(at(0.1))));
        assert_eq!(job.next(at(1.0)), JobStep::Take(10));
        job.took(10, at(1.0));
        assert_eq!(job.next(at(1.0)), JobStep::Wait(Some(at(1.1))));
        assert_eq!(job.next(at(1.5)), JobStep::Take(5));
        job.plan.strategy.ramp_ms = 10_000;
        job.taken = 0;
        assert_eq!(job.next(at(1.0)), JobStep::Wait(Some(at(1.1))));
        job.taken = 1;
        assert_eq!(job.next(at(2.0)), JobStep::Take(1));
        job.taken = 45;
        assert_eq!(job.next(at(10.0)), JobStep::Take(5));
        assert_eq!(job.plan.strategy.time_for(50), Duration::from_secs(10));
        assert_eq!(job.plan.strategy.time_for(150), Duration::from_secs(20));
    }

    #[test]
    fn a_pause_earns_nothing() {
        let mut job = job(JobStrategy { rate: Some(10.0), ..JobStrategy::default() });
        (job.taken, job.taken_before, job.running_since) = (20, 20, at(100.0));
        assert_eq!(job.next(at(101.0)), JobStep::Take(10));
    }

    /// The canary took ten minutes, or the process was down for as long.
    #[test]
    fn a_wait_earns_nothing() {
        for ramp_ms in [0, 10_000] {
            let mut job =
                job(JobStrategy { rate: Some(10.0), ramp_ms, canary: Some(5), ..JobStrategy::default() });
            (job.taken, job.done) = (5, 5);
            let mut let_go = 0;
            for tenth in 0..100 {
                let now = at(600.0 + f64::from(tenth) / 10.0);
                if let JobStep::Take(letters) = job.next(now) {
                    job.took(u64::from(letters), now);
                    let_go += letters;
                }
            }
            let most = if ramp_ms == 0 { 90..=110 } else { 70..=90 };
            assert!(most.contains(&let_go), "{let_go} in ten seconds, after a ramp of {ramp_ms} ms");
        }
    }

    #[test]
    fn a_slow_rate_comes_to_one_some_time() {
        let mut job = job(JobStrategy { rate: Some(0.01), ..JobStrategy::default() });
        assert!(matches!(job.next(at(99.0)), JobStep::Wait(_)));
        assert_eq!(job.next(at(101.0)), JobStep::Take(1));
        job.took(1, at(101.0));
        assert!(matches!(job.next(at(199.0)), JobStep::Wait(_)));
        assert_eq!(job.next(at(202.0)), JobStep::Take(1));
    }

    #[test]
    fn a_canary_goes_first_and_has_to_live() {
        let mut job = job(JobStrategy { canary: Some(5), ..JobStrategy::default() });
        assert_eq!(job.next(at(0.0)), JobStep::Take(5));
        job.taken = 5;
        job.done = 4;
        assert_eq!(job.next(at(1.0)), JobStep::Wait(None));
        job.done = 5;
        assert_eq!(job.next(at(1.0)), JobStep::Take(STEP_MAX));
        (job.done, job.failed) = (4, 1);
        assert_eq!(job.next(at(1.0)), JobStep::End(JobState::Stopped, "1 of 5 failed again".to_owned()));
        job.plan.strategy.stop_at = Some(0.2);
        assert_eq!(job.next(at(1.0)), JobStep::Take(STEP_MAX));
    }

    #[test]
    fn a_canary_of_retrying_events_goes_first_too() {
        let mut job = job(JobStrategy { canary: Some(2), ..JobStrategy::default() });
        job.plan.act = JobAct::RetryNow;
        assert_eq!(job.next(at(0.0)), JobStep::Take(2));
        (job.taken, job.done) = (2, 1);
        assert_eq!(job.next(at(1.0)), JobStep::Wait(None));
        job.failed = 1;
        assert_eq!(job.next(at(1.0)), JobStep::End(JobState::Stopped, "1 of 2 failed again".to_owned()));
    }

    #[test]
    fn it_stops_when_too_many_fail_again_and_not_before() {
        let mut job = job(JobStrategy { stop_at: Some(0.2), ..JobStrategy::default() });
        (job.taken, job.failed) = (100, 19);
        assert_eq!(job.next(at(1.0)), JobStep::Take(STEP_MAX), "nineteen say nothing yet");
        job.failed = 20;
        assert!(matches!(job.next(at(1.0)), JobStep::End(JobState::Stopped, _)));
        (job.done, job.failed) = (80, 20);
        assert_eq!(job.next(at(1.0)), JobStep::Take(STEP_MAX), "a share of 0.2 is not above 0.2");
    }

    #[test]
    fn it_is_done_when_all_have_ended() {
        let mut job = job(JobStrategy::default());
        (job.taken, job.done, job.exhausted) = (10, 9, true);
        assert_eq!(job.next(at(1.0)), JobStep::Wait(None));
        job.other = 1;
        assert_eq!(job.next(at(1.0)), JobStep::End(JobState::Done, String::new()));
        job.state = JobState::Paused;
        assert_eq!(job.next(at(1.0)), JobStep::Wait(None));
    }
}
