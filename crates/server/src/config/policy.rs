//! The default policy of the server's queues: patient, because an event can wait and a receiver may be down for hours.
//!
//! An in-process call waits with its caller, so its default policy ([`PolicySettings::default`]) gives up within a
//! second. A queue that did the same would turn every restart of a receiver into dead letters. A queue's own
//! `[queues.NAME.policy]` is merged over the patient one, setting by setting.

use std::time::Duration;

use redrive::backoff::Backoff;
use redrive::breaker::BreakerSettings;
use redrive::budget::BudgetSettings;
use redrive::jitter::Jitter;
use redrive::limit::LimitSettings;
use redrive::policy::PolicySettings;
use redrive::rate::RateSettings;
use serde::Deserialize;

/// How long an event id is remembered after its event ended: longer than the patient policy may retry.
pub const WINDOW: Duration = Duration::from_secs(3 * 86_400);

/// The waits double from the first to the cap. With full jitter they are half as long on average: about a day in all.
const ATTEMPTS: u32 = 20;
const FIRST_WAIT: Duration = Duration::from_secs(5);
const WAIT_MAX: Duration = Duration::from_secs(6 * 3600);
/// The longest `Retry-After` that is honoured; a longer one is shortened to it.
const NOT_BEFORE_MAX: Duration = Duration::from_secs(3600);

/// The policy of a queue without `[queues.NAME.policy]`.
#[must_use]
pub fn patient() -> PolicySettings {
    PolicySettings {
        attempts: ATTEMPTS,
        backoff: Backoff::exponential(FIRST_WAIT, 2.0, WAIT_MAX),
        not_before_max: NOT_BEFORE_MAX,
        ..PolicySettings::default()
    }
}

/// [`PolicySettings`] as read from a queue's settings: what is left out is as in [`patient`].
#[derive(Deserialize)]
#[serde(remote = "PolicySettings", default = "patient", deny_unknown_fields)]
pub(super) struct PatientPolicy {
    name: String,
    attempts: u32,
    backoff: Backoff,
    jitter: Jitter,
    #[serde(with = "redrive::config::optional")]
    time: Option<Duration>,
    #[serde(with = "redrive::config::optional")]
    attempt_time: Option<Duration>,
    #[serde(with = "redrive::config::duration")]
    not_before_max: Duration,
    #[serde(with = "redrive::config::budget")]
    budget: Option<BudgetSettings>,
    breaker: Option<BreakerSettings>,
    limit: Option<LimitSettings>,
    rate: Option<RateSettings>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn policy(text: &str) -> PolicySettings {
        let text = format!("[queues.a.push]\nurl = \"https://a.example\"\n{text}");
        let config: Config = toml::from_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        config.queues["a"].policy.clone()
    }

    #[test]
    fn a_queue_with_only_a_url_retries_for_a_day_and_two_at_most() {
        let policy = policy("");
        assert_eq!(policy, patient());
        let hours = |duration: Duration| duration.as_secs_f64() / 3600.0;
        let waits: Duration = (1..policy.attempts).map(|retry| policy.backoff.ceiling(retry)).sum();
        assert!((23.0..24.0).contains(&(hours(waits) / 2.0)), "a mean of {} hours", hours(waits) / 2.0);
        assert!(hours(waits) < 48.0, "{} hours at most", hours(waits));
        let attempts = PolicySettings { attempt_time: Some(Duration::from_secs(30)), ..policy };
        assert!(attempts.horizon().total() < WINDOW, "{}", attempts.horizon());
    }

    #[test]
    fn a_partial_policy_is_merged_over_the_patient_one() {
        let merged = policy("[queues.a.policy]\nattempts = 5\ntime = \"1h\"\n");
        let expected = PolicySettings { attempts: 5, time: Some(Duration::from_secs(3600)), ..patient() };
        assert_eq!(merged, expected);
        assert_eq!(policy("[queues.a.policy]\nbudget = \"none\"\n").budget, None);
        let misspelt = "[queues.a.policy]\natempts = 5\n";
        let error = toml::from_str::<Config>(misspelt).expect_err("a name that is none").to_string();
        assert!(error.contains("unknown field `atempts`") && error.contains("line 2"), "{error}");
    }
}
