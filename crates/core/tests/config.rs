//! Policies in configuration files.
#![cfg(feature = "serde")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::time::Duration;

use proptest::prelude::*;
use redrive_core::breaker::BreakerSettings;
use redrive_core::budget::BudgetSettings;
use redrive_core::limit::LimitSettings;
use redrive_core::policy::PolicySettings;
use redrive_core::rate::RateSettings;
use redrive_core::{Backoff, Jitter, Policy, PolicyError};

const MS: fn(u64) -> Duration = Duration::from_millis;

/// Writes and reads in both languages.
fn round_trip(settings: &PolicySettings) {
    let written = toml::to_string(settings).unwrap();
    let read: PolicySettings = toml::from_str(&written).expect(&written);
    assert_eq!(read, *settings, "{written}");

    let written = serde_json::to_string(settings).unwrap();
    let read: PolicySettings = serde_json::from_str(&written).expect(&written);
    assert_eq!(read, *settings, "{written}");
}

#[test]
fn every_setting_survives_the_round_trip() {
    let backoffs = [
        Backoff::NONE,
        Backoff::constant(MS(1_500)),
        Backoff::linear(MS(100), MS(50), Duration::from_secs(90)),
        Backoff::exponential(MS(250), 1.5, Duration::from_secs(3_600)),
        Backoff::table([MS(1), Duration::from_secs(60), Duration::from_nanos(1_000_001)]),
    ];
    let jitters = [Jitter::None, Jitter::Full, Jitter::Equal, Jitter::Decorrelated];
    for backoff in backoffs {
        for jitter in jitters {
            round_trip(&PolicySettings { backoff: backoff.clone(), jitter, ..PolicySettings::default() });
        }
    }
    round_trip(&PolicySettings {
        name: "payments".to_owned(),
        attempts: 7,
        time: Some(Duration::from_secs(30)),
        attempt_time: Some(MS(2_500)),
        not_before_max: Duration::from_secs(86_400),
        budget: Some(BudgetSettings { share: 0.35, floor: 0.5, window: Duration::from_secs(60) }),
        breaker: Some(BreakerSettings {
            failing: 0.25,
            window: 40,
            least_calls: 5,
            open_for: MS(1_250),
            probes: 2,
        }),
        limit: Some(LimitSettings { least: 4, most: 64 }),
        rate: Some(RateSettings { per_second: 12.5, burst: 3 }),
        ..PolicySettings::default()
    });
}

#[test]
fn a_policy_without_a_budget_does_not_come_back_with_one() {
    let without = Policy::builder().no_budget().build().unwrap();
    round_trip(without.settings());
    let read: Policy = toml::from_str(&toml::to_string(&without).unwrap()).unwrap();
    assert!(read.budget().is_none());
    let read: Policy = toml::from_str(r#"budget = "none""#).unwrap();
    assert!(read.budget().is_none());
    let read: Policy = serde_json::from_str(r#"{ "budget": null }"#).unwrap();
    assert!(read.budget().is_none());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_duration_survives_the_round_trip_to_the_nanosecond(secs in 0..1u64 << 40, nanos in 0..1_000_000_000u32) {
        let not_before_max = Duration::new(secs, nanos);
        round_trip(&PolicySettings { not_before_max, ..PolicySettings::default() });
    }
}

#[test]
fn what_is_left_out_has_its_default() {
    let empty: Policy = toml::from_str("").unwrap();
    assert_eq!(empty.settings(), Policy::default().settings());
    assert_eq!(empty.settings(), Policy::builder().build().unwrap().settings());

    let some: PolicySettings = toml::from_str(
        r#"
        attempts = 5
        budget.share = 0.2
        breaker.open_for = "1m 30s"
        rate.per_second = 10
        [backoff.exponential]
        base = "50ms"
        factor = 2
        cap = "2s"
        "#,
    )
    .unwrap();
    let want = PolicySettings {
        attempts: 5,
        backoff: Backoff::exponential(MS(50), 2.0, Duration::from_secs(2)),
        budget: Some(BudgetSettings { share: 0.2, ..BudgetSettings::default() }),
        breaker: Some(BreakerSettings { open_for: Duration::from_secs(90), ..BreakerSettings::default() }),
        rate: Some(RateSettings { per_second: 10.0, burst: 1 }),
        ..PolicySettings::default()
    };
    assert_eq!(some, want);
}

/// The message alone, without the line that it quotes.
fn refusal(written: &str) -> String {
    let refused = toml::from_str::<Policy>(written);
    refused.expect_err(written).message().to_owned()
}

#[test]
fn a_key_that_does_not_exist_is_refused_by_name() {
    for (written, named) in [
        ("atempts = 3", "`atempts`"),
        ("budget.shares = 0.1", "`shares`"),
        ("breaker.prob = 3", "`prob`"),
        ("limit = { least = 1, most = 2, max = 3 }", "`max`"),
        ("rate = { per_second = 1, per_minute = 2 }", "`per_minute`"),
        (r#"backoff.constant = { delay = "1s", cap = "2s" }"#, ": cap"),
        (r#"backoff.fibonacci = { base = "1s" }"#, "`fibonacci`"),
        (r#"jitter = "half""#, "`half`"),
        (r#"budget = "off""#, "\"off\""),
    ] {
        let message = refusal(written);
        assert!(message.contains(named), "{written}: {message}");
    }
}

#[test]
fn a_bad_duration_is_refused_and_shown_the_right_form() {
    for written in [
        r#"time = "soon""#,
        r#"time = "5""#,
        "time = 5",
        "attempt_time = 2.5",
        r#"not_before_max = """#,
        r#"budget.window = "10 parsecs""#,
        "breaker.open_for = 5",
        r#"backoff.constant.delay = "-1s""#,
        r#"backoff.table.delays = ["1s", 2]"#,
    ] {
        let message = refusal(written);
        assert!(message.contains(r#"write it as "250ms" or "10s""#), "{written}: {message}");
    }
}

#[test]
fn nonsense_is_refused_in_the_builder_s_own_words() {
    for (written, refused) in [
        ("attempts = 0", PolicyError::ZeroAttempts),
        (r#"time = "0s""#, PolicyError::ZeroTime { what: "a time in all" }),
        ("budget.share = 1.5", PolicyError::Share { share: 1.5 }),
        ("backoff.table.delays = []", PolicyError::EmptyTable),
        (
            r#"backoff.exponential = { base = "1s", factor = 0.5, cap = "2s" }"#,
            PolicyError::Factor { factor: 0.5 },
        ),
        ("limit = { least = 5, most = 4 }", PolicyError::Limit { least: 5, most: 4 }),
        ("rate = { per_second = 1, burst = 0 }", PolicyError::ZeroBurst),
        (
            "breaker.window = 41",
            PolicyError::Breaker(BreakerSettings { window: 41, ..BreakerSettings::default() }),
        ),
    ] {
        let message = refusal(written);
        assert!(message.contains(&refused.to_string()), "{written}: {message}");
    }
}
