//! A change to many dead letters that goes on in the background.
//!
//! What a job has done is in the store, committed with each of its steps; what it does next is a function of that
//! and the time. So it goes on after a restart, and whoever steps it twice has stepped it once: a step names the
//! place from which it goes on.
//!
//! A job takes only letters that were dead when it began, told by the number of their death and not by the clock.
//! So a letter that another job put back, and that died again, is not put back a second time.

use std::time::Duration;

use super::{Filter, Redrive};
use crate::entry::Seq;
use crate::moment::Moment;

/// How many letters a step takes at most.
pub const STEP_MAX: u32 = 1_000;
/// How long a step waits at least for the next one, where there is a rate.
const STEP_TIME: Duration = Duration::from_millis(100);
/// How much of a rate may be made up for at once, after steps that came late. What a job did not use for longer, because
/// it waited for its canary or nobody was there to take it further, is lost: a rate is a promise to the other side.
const BURST: Duration = Duration::from_secs(1);
/// After how many that ended a job without a canary is judged.
const JUDGED_MIN: u64 = 20;

/// The number of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct JobId(pub u64);

/// What is done to each letter.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum JobAct {
    /// It is put back.
    Redrive(Redrive),
    /// It is taken away, and can be restored for a time.
    Discard,
}

impl JobAct {
    /// The word in the audit.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Redrive(_) => "redrive",
            Self::Discard => "discard",
        }
    }
}

/// How a job goes about it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct Strategy {
    /// How many a second; as fast as it goes where it is none.
    pub rate: Option<f64>,
    /// Over how long the rate grows from nothing to what it is, in milliseconds.
    pub ramp_ms: u64,
    /// How many go first; the others follow when all of them have ended, and not too many have failed again.
    pub canary: Option<u32>,
    /// The share that may fail again, from 0 to 1; above it the job stops. With a canary and without this, none of
    /// the canary may fail.
    pub stop_at: Option<f64>,
}

impl Strategy {
    /// Whether it can be meant.
    ///
    /// # Errors
    /// With what is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        if self.rate.is_some_and(|rate| !rate.is_finite() || rate <= 0.0) {
            return Err("a rate is a number above 0".to_owned());
        }
        if self.stop_at.is_some_and(|share| !(0.0..=1.0).contains(&share)) {
            return Err("the share at which to stop is between 0 and 1".to_owned());
        }
        if self.canary == Some(0) {
            return Err("a canary of 0 is none; use at least 1".to_owned());
        }
        if self.ramp_ms > 0 && self.rate.is_none() {
            return Err("a ramp leads to a rate; say which".to_owned());
        }
        Ok(())
    }

    /// How many may have been let go, so long after the start.
    fn allowed(&self, elapsed: Duration) -> f64 {
        let Some(rate) = self.rate else { return f64::INFINITY };
        let (elapsed, ramp) = (elapsed.as_secs_f64(), Duration::from_millis(self.ramp_ms).as_secs_f64());
        // On the ramp the rate grows with the time, so the number grows with its square.
        if elapsed < ramp { rate * elapsed * elapsed / (2.0 * ramp) } else { rate * (elapsed - ramp / 2.0) }
    }

    /// How long so many take at least.
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

/// What a job is to do.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct JobPlan {
    /// To which dead letters.
    pub filter: Filter,
    /// What.
    pub act: JobAct,
    /// How.
    pub strategy: Strategy,
}

/// Where a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobState {
    /// It goes on.
    Running,
    /// An operator stopped it for now.
    Paused,
    /// Everything is done.
    Done,
    /// An operator ended it.
    Cancelled,
    /// It ended itself, because too many failed again.
    Stopped,
}

impl JobState {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Running, Self::Paused, Self::Done, Self::Cancelled, Self::Stopped];

    /// The word in the store and in answers.
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

    /// The one with this word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }

    /// Whether it is over.
    #[must_use]
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Cancelled | Self::Stopped)
    }
}

/// A job, as the store knows it.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Its number.
    pub id: JobId,
    /// What it is to do.
    pub plan: JobPlan,
    /// Where it is.
    pub state: JobState,
    /// Why it is there, in words.
    pub why: String,
    /// Who started it.
    pub who: String,
    /// When it was started.
    pub started: Moment,
    /// Since when it runs, and how many it had let go by then: the rate counts from here.
    pub running_since: Moment,
    /// How many it had let go when it last began to run.
    pub taken_before: u64,
    /// When it was over.
    pub ended: Option<Moment>,
    /// How many letters it was about when it was started. Where its filter is a fine one, of the first ten thousand
    /// that were looked at: a plan counts them all.
    pub planned: u64,
    /// The last death that it is about.
    pub deaths: u64,
    /// The place of the last letter that it looked at.
    pub cursor: Option<Seq>,
    /// Whether it has looked at all.
    pub exhausted: bool,
    /// Letters that it changed.
    pub taken: u64,
    /// Letters that it may not change: they would run out of order.
    pub skipped: u64,
    /// Those of them that are done since.
    pub done: u64,
    /// Those of them that are dead again.
    pub failed: u64,
    /// Those of them that ended otherwise: dropped, expired, discarded.
    pub other: u64,
}

/// What a job does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Takes so many letters.
    Take(u32),
    /// Waits: until then, or until something changes.
    Wait(Option<Moment>),
    /// Ends.
    End(JobState, String),
}

impl Job {
    /// A job that begins: about so many letters, and no later death than this one.
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

    /// Puts it in another state.
    pub fn turn(&mut self, to: JobState, why: &str, at: Moment) {
        self.state = to;
        why.clone_into(&mut self.why);
        if to == JobState::Running {
            self.running_since = at;
            self.taken_before = self.taken;
        }
        self.ended = to.is_over().then_some(at);
    }

    /// How many letters it is about: those that it took, or was planned for while it has taken none.
    #[must_use]
    pub const fn letters(&self) -> u64 {
        if self.taken == 0 && !self.state.is_over() { self.planned } else { self.taken }
    }

    /// Letters that have not ended since it put them back.
    #[must_use]
    pub const fn under_way(&self) -> u64 {
        self.taken.saturating_sub(self.done + self.failed + self.other)
    }

    /// What to do next.
    #[must_use]
    pub fn next(&self, now: Moment) -> Step {
        if self.state != JobState::Running {
            return Step::Wait(None);
        }
        let Strategy { canary, .. } = self.plan.strategy;
        let is_redrive = matches!(self.plan.act, JobAct::Redrive(_));
        if is_redrive && let Some(why) = self.is_failing() {
            return Step::End(JobState::Stopped, why);
        }
        if self.exhausted {
            let over = !is_redrive || self.under_way() == 0;
            return if over { Step::End(JobState::Done, String::new()) } else { Step::Wait(None) };
        }
        let canary = canary.filter(|_| is_redrive).map(u64::from);
        let most = match canary {
            Some(canary) if self.taken < canary => canary - self.taken,
            Some(canary) if self.taken == canary && self.under_way() > 0 => return Step::Wait(None),
            _ => u64::from(STEP_MAX),
        };
        let allowed = self.plan.strategy.allowed(self.earned(now));
        let room = whole(allowed - as_f64(self.since())).min(most).min(u64::from(STEP_MAX));
        match u32::try_from(room) {
            Ok(0) | Err(_) => Step::Wait(Some(now + STEP_TIME)),
            Ok(room) => Step::Take(room),
        }
    }

    /// It let go so many more. The time in which it could have and did not is taken from it.
    pub fn took(&mut self, letters: u64, at: Moment) {
        let unused = at.since(self.running_since).saturating_sub(self.earned(at));
        self.running_since = self.running_since + unused;
        self.taken += letters;
    }

    /// How much time it has earned since it last began to run: what it has used, and not much more.
    fn earned(&self, now: Moment) -> Duration {
        let Strategy { rate: Some(_), .. } = self.plan.strategy else { return now.since(self.running_since) };
        let used = self.plan.strategy.time_for(self.since());
        // The time for one at least, or a slow rate would never come to it.
        let one = self.plan.strategy.time_for(self.since() + 1).saturating_sub(used);
        let most = used.saturating_add(BURST.max(one.saturating_add(Duration::from_millis(1))));
        now.since(self.running_since).min(most)
    }

    /// How many it let go since it last began to run.
    const fn since(&self) -> u64 {
        self.taken.saturating_sub(self.taken_before)
    }

    /// Why it is to stop, if too many have failed again.
    fn is_failing(&self) -> Option<String> {
        let Strategy { canary, stop_at, .. } = self.plan.strategy;
        let ended = self.done + self.failed;
        let is_canary_over = canary.is_some_and(|canary| ended + self.other >= u64::from(canary));
        let share = stop_at.or(canary.map(|_| 0.0))?;
        // A canary without a share is judged when all of it has ended, and then no more.
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

    fn job(strategy: Strategy) -> Job {
        let act = JobAct::Redrive(Redrive::default());
        let plan = JobPlan { filter: Filter::default(), act, strategy };
        Job::begin(JobId(1), plan, "ada", Moment::default(), (100, 100))
    }

    fn at(seconds: f64) -> Moment {
        Moment::default() + Duration::from_secs_f64(seconds)
    }

    #[test]
    fn a_rate_is_kept_and_a_ramp_leads_to_it() {
        let mut job = job(Strategy { rate: Some(10.0), ..Strategy::default() });
        assert_eq!(job.next(at(0.0)), Step::Wait(Some(at(0.1))));
        assert_eq!(job.next(at(1.0)), Step::Take(10));
        job.took(10, at(1.0));
        assert_eq!(job.next(at(1.0)), Step::Wait(Some(at(1.1))));
        assert_eq!(job.next(at(1.5)), Step::Take(5));
        job.plan.strategy.ramp_ms = 10_000;
        job.taken = 0;
        assert_eq!(job.next(at(1.0)), Step::Wait(Some(at(1.1))));
        job.taken = 1;
        assert_eq!(job.next(at(2.0)), Step::Take(1));
        job.taken = 45;
        assert_eq!(job.next(at(10.0)), Step::Take(5));
        assert_eq!(job.plan.strategy.time_for(50), Duration::from_secs(10));
        assert_eq!(job.plan.strategy.time_for(150), Duration::from_secs(20));
    }

    #[test]
    fn a_pause_earns_nothing() {
        let mut job = job(Strategy { rate: Some(10.0), ..Strategy::default() });
        (job.taken, job.taken_before, job.running_since) = (20, 20, at(100.0));
        assert_eq!(job.next(at(101.0)), Step::Take(10));
    }

    /// The canary took ten minutes, or the process was away for as long.
    #[test]
    fn a_wait_earns_nothing() {
        for ramp_ms in [0, 10_000] {
            let mut job = job(Strategy { rate: Some(10.0), ramp_ms, canary: Some(5), ..Strategy::default() });
            (job.taken, job.done) = (5, 5);
            let mut let_go = 0;
            for tenth in 0..100 {
                let now = at(600.0 + f64::from(tenth) / 10.0);
                if let Step::Take(letters) = job.next(now) {
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
        let mut job = job(Strategy { rate: Some(0.01), ..Strategy::default() });
        assert!(matches!(job.next(at(99.0)), Step::Wait(_)));
        assert_eq!(job.next(at(101.0)), Step::Take(1));
        job.took(1, at(101.0));
        assert!(matches!(job.next(at(199.0)), Step::Wait(_)));
        assert_eq!(job.next(at(202.0)), Step::Take(1));
    }

    #[test]
    fn a_canary_goes_first_and_has_to_live() {
        let mut job = job(Strategy { canary: Some(5), ..Strategy::default() });
        assert_eq!(job.next(at(0.0)), Step::Take(5));
        job.taken = 5;
        job.done = 4;
        assert_eq!(job.next(at(1.0)), Step::Wait(None));
        job.done = 5;
        assert_eq!(job.next(at(1.0)), Step::Take(STEP_MAX));
        (job.done, job.failed) = (4, 1);
        assert_eq!(job.next(at(1.0)), Step::End(JobState::Stopped, "1 of 5 failed again".to_owned()));
        job.plan.strategy.stop_at = Some(0.2);
        assert_eq!(job.next(at(1.0)), Step::Take(STEP_MAX));
    }

    #[test]
    fn it_stops_when_too_many_fail_again_and_not_before() {
        let mut job = job(Strategy { stop_at: Some(0.2), ..Strategy::default() });
        (job.taken, job.failed) = (100, 19);
        assert_eq!(job.next(at(1.0)), Step::Take(STEP_MAX), "nineteen say nothing yet");
        job.failed = 20;
        assert!(matches!(job.next(at(1.0)), Step::End(JobState::Stopped, _)));
        (job.done, job.failed) = (80, 20);
        assert_eq!(job.next(at(1.0)), Step::Take(STEP_MAX), "a share of 0.2 is not above 0.2");
    }

    #[test]
    fn it_is_done_when_all_have_ended() {
        let mut job = job(Strategy::default());
        (job.taken, job.done, job.exhausted) = (10, 9, true);
        assert_eq!(job.next(at(1.0)), Step::Wait(None));
        job.other = 1;
        assert_eq!(job.next(at(1.0)), Step::End(JobState::Done, String::new()));
        job.state = JobState::Paused;
        assert_eq!(job.next(at(1.0)), Step::Wait(None));
    }
}
