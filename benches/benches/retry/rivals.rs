//! The rivals, each with up to three attempts and exponential backoff, as its own documentation sets it up.

use std::future::Ready;
use std::sync::Arc;
use std::time::Duration;

use backon::{BlockingRetryable, ExponentialBuilder, Retryable};
use layered::{Execute, Service as _, Stack};
use redrive_benches::measure::Side;
use redrive_benches::poll;
use seatbelt::retry::Retry as SeatbeltRetry;
use seatbelt::{RecoveryInfo, ResilienceContext};
use tokio_retry::strategy::{ExponentialBackoff, jitter};
use tower::retry::budget::{Budget, TpsBudget};
use tower::{Layer, retry};
use tower_resilience::retry::RetryLayer;

use crate::baseline::{self, Down, Fetch, call, fetch, id, read};

pub(crate) const BACKON: &str = "backon 1.6";

pub(crate) fn sides() -> Vec<Side<'static>> {
    vec![
        backon(),
        backon_blocking(),
        tokio_retry(),
        tower("tower 0.5", Attempts { left: 2, budget: () }),
        tower("tower 0.5, TpsBudget", Attempts { left: 2, budget: Arc::new(TpsBudget::default()) }),
        seatbelt(),
        tower_resilience(),
        backoff(),
    ]
}

fn backon() -> Side<'static> {
    let backoff = ExponentialBuilder::default();
    Side::new(BACKON, baseline::ASYNC, move || {
        poll::now(async { (|| fetch(id())).retry(backoff).when(|_: &Down| true).await.ok() })
    })
}

fn backon_blocking() -> Side<'static> {
    let backoff = ExponentialBuilder::default();
    Side::new("backon 1.6 blocking", baseline::BLOCKING, move || {
        (|| read(id())).retry(backoff).when(|_: &Down| true).call().ok()
    })
}

fn tokio_retry() -> Side<'static> {
    Side::new("tokio-retry 0.3", baseline::ASYNC, || {
        poll::now(async {
            let waits = ExponentialBackoff::from_millis(10).map(jitter).take(2);
            tokio_retry::Retry::start(waits, || fetch(id())).await.ok()
        })
    })
}

/// A policy as tower's documentation writes one: so many attempts, with or without a budget.
#[derive(Debug, Clone)]
struct Attempts<B> {
    left: usize,
    budget: B,
}

impl retry::Policy<u64, u64, Down> for Attempts<()> {
    type Future = Ready<()>;

    fn retry(&mut self, _: &mut u64, result: &mut Result<u64, Down>) -> Option<Ready<()>> {
        if result.is_ok() || self.left == 0 {
            return None;
        }
        self.left -= 1;
        Some(std::future::ready(()))
    }

    fn clone_request(&mut self, request: &u64) -> Option<u64> {
        Some(*request)
    }
}

impl retry::Policy<u64, u64, Down> for Attempts<Arc<TpsBudget>> {
    type Future = Ready<()>;

    fn retry(&mut self, _: &mut u64, result: &mut Result<u64, Down>) -> Option<Ready<()>> {
        if result.is_ok() {
            self.budget.deposit();
            return None;
        }
        if self.left == 0 || !self.budget.withdraw() {
            return None;
        }
        self.left -= 1;
        Some(std::future::ready(()))
    }

    fn clone_request(&mut self, request: &u64) -> Option<u64> {
        Some(*request)
    }
}

fn tower<P>(name: &'static str, policy: P) -> Side<'static>
where
    P: retry::Policy<u64, u64, Down> + Clone + 'static,
{
    let mut service = retry::Retry::new(policy, Fetch);
    Side::new(name, baseline::TOWER, move || call(&mut service))
}

fn seatbelt() -> Side<'static> {
    let clock = tick::Clock::new_tokio();
    let context = ResilienceContext::new(&clock).name("bench");
    let stack = (
        SeatbeltRetry::layer("retry", &context).clone_input().recovery_with(|result, _| match result {
            Ok(_) => RecoveryInfo::never(),
            Err(Down) => RecoveryInfo::retry(),
        }),
        Execute::new(fetch),
    );
    let service = stack.into_service();
    Side::new("seatbelt 0.11", baseline::ASYNC, move || poll::now(async { service.execute(id()).await.ok() }))
}

fn tower_resilience() -> Side<'static> {
    let layer = RetryLayer::<u64, u64, Down>::builder()
        .max_attempts(3)
        .exponential_backoff(Duration::from_millis(100))
        .build();
    let mut service = layer.layer(Fetch);
    Side::new("tower-resilience 0.13", baseline::TOWER, move || call(&mut service))
}

fn backoff() -> Side<'static> {
    Side::new("backoff 0.4", baseline::ASYNC, || {
        poll::now(async {
            let operation = || async { fetch(id()).await.map_err(backoff::Error::transient) };
            backoff::future::retry(backoff::ExponentialBackoff::default(), operation).await.ok()
        })
    })
}
