//! aws-smithy-runtime 1.16: a token bucket that loses what is put in.
//!
//! A success adds its reward to a float in an atomic: load, add, store. Two threads that load the same sum
//! store the same sum, and one reward is gone; at worst the bucket stays empty under load and nothing is
//! retried.
//!
//! The bucket's own methods are private. It is reached here as the orchestrator reaches it, through the
//! standard strategy, and read through its `Debug`, which prints what it holds.

use std::sync::atomic::{AtomicUsize, Ordering};

use aws_smithy_runtime::client::retries::TokenBucket;
use aws_smithy_runtime::client::retries::strategy::StandardRetryStrategy;
use aws_smithy_runtime_api::client::interceptors::context::{Input, InterceptorContext, Output};
use aws_smithy_runtime_api::client::retries::{RequestAttempts, RetryStrategy, ShouldAttempt};
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponentsBuilder;
use aws_smithy_types::config_bag::{ConfigBag, Layer};
use aws_smithy_types::retry::RetryConfig;
use redrive_core::{Budget, Moment};

use crate::redrive_helpers::shows;

const THREADS: usize = 8;
const SUCCESSES: usize = 20_000;
const ALL: usize = THREADS * SUCCESSES;

fn on_all_threads(each: impl Fn() + Sync) {
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| (0..SUCCESSES).for_each(|_| each()));
        }
    });
}

/// One call after another that succeeds at once, as the orchestrator tells the strategy.
fn rewarded(bucket: &TokenBucket, run: impl FnOnce(&(dyn Fn() + Sync))) {
    let mut layer = Layer::new("peers");
    layer.store_put(RetryConfig::standard());
    layer.store_put(RequestAttempts::new(1));
    layer.store_put(bucket.clone());
    let config = ConfigBag::of_layers(vec![layer]);
    let components = RuntimeComponentsBuilder::for_tests().build().unwrap();
    let mut context = InterceptorContext::new(Input::doesnt_matter());
    context.set_output_or_error(Ok(Output::doesnt_matter()));
    run(&|| {
        let strategy = StandardRetryStrategy::new();
        let said = strategy.should_attempt_retry(&context, &components, &config).unwrap();
        assert_eq!(said, ShouldAttempt::No);
    });
}

/// What lies in the bucket: `… AtomicF32 { value: 42.0 } …`.
fn held(bucket: &TokenBucket) -> f64 {
    let printed = format!("{bucket:?}");
    let (_, rest) = printed.split_once("fractional_tokens: AtomicF32 { value: ").unwrap();
    rest.split_once(' ').unwrap().0.parse().unwrap()
}

/// A whole token for every success, and room for all: every sum is a whole number that a float holds exactly.
fn bucket() -> TokenBucket {
    TokenBucket::builder().capacity(ALL).success_reward(1.0).build()
}

#[test]
fn one_thread_alone_finds_all_its_rewards_in_smithys_bucket() {
    let bucket = bucket();
    rewarded(&bucket, |succeed| (0..1000).for_each(|_| succeed()));
    assert!((held(&bucket) - 1000.0).abs() < f64::EPSILON);
}

#[test]
fn smithys_bucket_loses_rewards_of_eight_threads_and_our_budget_none() {
    #[allow(clippy::cast_precision_loss, reason = "160 000")]
    let all = ALL as f64;
    let lost = || {
        let theirs = bucket();
        rewarded(&theirs, |succeed| on_all_threads(succeed));
        held(&theirs) < all
    };
    assert!(shows(lost), "mended?");

    // A withdrawal also counts the deposits of others, so the two run side by side.
    let (ours, now) = (Budget::share_of(1.0).unwrap(), Moment::default());
    let granted = AtomicUsize::new(0);
    let ask = || _ = granted.fetch_add(usize::from(ours.withdraw(now)), Ordering::Relaxed);
    on_all_threads(|| {
        ours.deposit(&now);
        ask();
    });
    assert_eq!(granted.load(Ordering::Relaxed) + usize::try_from(ours.tokens(now)).unwrap(), ALL);
    // And whatever was refused at the time is still there, once.
    on_all_threads(ask);
    assert_eq!(granted.into_inner(), ALL);
}
