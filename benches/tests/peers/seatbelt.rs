//! seatbelt 0.11, and with it Polly 8 and resilience4j: clamped after the jitter.
//!
//! The draw goes around a backoff that has outgrown the cap long ago, and what comes out above the cap
//! becomes the cap. So those who have waited longest, which are those of the worst outage, come back at the
//! same moment. Redrive takes the cap first and draws below it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use layered::{Execute, Service as _, Stack};
use redrive_core::{Backoff, Fault, Jitter, RandomSource, SeededRandom};
use seatbelt::retry::Retry;
use seatbelt::{RecoveryInfo, ResilienceContext};

use crate::redrive_helpers::{policy, waits};

const BASE: Duration = Duration::from_secs(1);
const CAP: Duration = Duration::from_secs(10);
const RETRIES: u32 = 12;
/// From the fifth retry on the plain backoff, 16 s, is above the cap.
const AT_THE_CAP: usize = 4;

/// How large a part of the waits is the most frequent one.
fn alike(waits: &[Duration]) -> f64 {
    let mut counts = HashMap::new();
    for wait in waits {
        *counts.entry(wait).or_insert(0) += 1;
    }
    let most = counts.into_values().max().unwrap_or(0);
    f64::from(most) / f64::from(u32::try_from(waits.len()).unwrap())
}

async fn seatbelts_waits() -> Vec<Duration> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&seen);
    let clock = tick::ClockControl::new().auto_advance_timers(true).to_clock();
    let context = ResilienceContext::new(&clock).name("peers");
    let retry = Retry::layer("retry", &context)
        .clone_input()
        .max_retry_attempts(RETRIES)
        .base_delay(BASE)
        .max_delay(CAP)
        .recovery_with(|_: &Result<(), &str>, _| RecoveryInfo::retry())
        .on_retry(move |_, retry| heard.lock().unwrap().push(retry.retry_delay()));
    let service = (retry, Execute::new(|()| async { Err::<(), _>("down") })).into_service();
    service.execute(()).await.unwrap_err();
    let seen = seen.lock().unwrap();
    seen[AT_THE_CAP..].to_vec()
}

/// A model, not its code: resilience4j is not written in Rust. It spreads the grown backoff by a half to
/// either side, then takes the smaller of that and the cap. Polly has no model here: seatbelt took over its
/// formula, and that it clamps likewise is reported of it, not shown.
fn clamped_after_jitter(retry: u32, random: &mut impl RandomSource) -> Duration {
    let grown = BASE.saturating_mul(1 << retry);
    #[allow(clippy::cast_precision_loss, reason = "a fraction, wanted to a few digits")]
    let roll = random.roll() as f64 / u64::MAX as f64;
    grown.mul_f64(0.5 + roll).min(CAP)
}

fn our_waits(jitter: Jitter) -> Vec<Duration> {
    let backoff = Backoff::exponential(BASE, 2.0, CAP);
    let policy = policy(RETRIES + 1).backoff(backoff).jitter(jitter).build().unwrap();
    (0..200).flat_map(|_| waits(&policy, Fault::transient()).0.split_off(AT_THE_CAP)).collect()
}

#[tokio::test]
async fn at_the_cap_nine_of_ten_seatbelt_waits_are_the_same() {
    let mut theirs = Vec::new();
    for _ in 0..200 {
        theirs.extend(seatbelts_waits().await);
    }
    assert_eq!(theirs.len(), 200 * 8);
    println!("seatbelt: {:.1} % alike", 100.0 * alike(&theirs));
    assert!(alike(&theirs) > 0.85, "{}", alike(&theirs));
}

#[test]
fn at_the_cap_the_rule_of_resilience4j_gives_the_same_wait_nearly_always() {
    let mut random = SeededRandom::new(8);
    let retries = 4..RETRIES;
    let modelled: Vec<_> = (0..200)
        .flat_map(|_| retries.clone())
        .map(|retry| clamped_after_jitter(retry, &mut random))
        .collect();
    assert!(alike(&modelled) > 0.9, "{}", alike(&modelled));
}

#[test]
fn at_the_cap_our_waits_are_still_spread() {
    for jitter in [Jitter::Full, Jitter::Equal, Jitter::Decorrelated] {
        let ours = our_waits(jitter);
        assert_eq!(ours.len(), 200 * 8);
        assert!(alike(&ours) < 0.01, "{jitter:?}: {}", alike(&ours));
        assert!(ours.into_iter().all(|wait| wait <= CAP));
    }
}
