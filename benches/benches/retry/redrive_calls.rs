//! Redrive's call styles, each under a plain policy and under one with a budget and a breaker.

use redrive_benches::measure::Side;
use redrive_benches::poll;
use redrive_core::{Breaker, Budget, Policy};
use redrive_http::RetryLayer;
use redrive_retry::{Retry, Start, blocking, classify};
use tower::Layer;

use crate::baseline::{self, Down, Fetch, call, fetch, id, read};

pub(crate) const POSTFIX: &str = "redrive postfix";
pub(crate) const SESSION: &str = "redrive session";
pub(crate) const TOWER: &str = "redrive tower";
pub(crate) const BLOCKING: &str = "redrive blocking";
pub(crate) const POSTFIX_FULL: &str = "redrive postfix, budget + breaker";
pub(crate) const SESSION_FULL: &str = "redrive session, budget + breaker";
pub(crate) const TOWER_FULL: &str = "redrive tower, budget + breaker";
pub(crate) const BLOCKING_FULL: &str = "redrive blocking, budget + breaker";

/// All of them, for what is to hold for each.
pub(crate) const ALL: [&str; 8] =
    [POSTFIX, SESSION, TOWER, BLOCKING, POSTFIX_FULL, SESSION_FULL, TOWER_FULL, BLOCKING_FULL];

pub(crate) fn sides() -> Vec<Side<'static>> {
    let plain = built(Policy::builder().no_budget());
    let full = built(Policy::builder().budget(Budget::default()).breaker(Breaker::default()));
    vec![
        postfix(POSTFIX, plain.clone()),
        session(SESSION, plain.clone()),
        tower(TOWER, plain.clone()),
        blocking(BLOCKING, plain),
        postfix(POSTFIX_FULL, full.clone()),
        session(SESSION_FULL, full.clone()),
        tower(TOWER_FULL, full.clone()),
        blocking(BLOCKING_FULL, full),
    ]
}

fn built(builder: redrive_core::PolicyBuilder) -> Policy {
    match builder.build() {
        Ok(policy) => policy,
        Err(error) => panic!("{error}"),
    }
}

fn postfix(name: &'static str, policy: Policy) -> Side<'static> {
    Side::new(name, baseline::ASYNC, move || {
        poll::now(async { (|| fetch(id())).retry(&policy).classify(classify::all).await.ok() })
    })
}

fn session(name: &'static str, policy: Policy) -> Side<'static> {
    Side::new(name, baseline::ASYNC, move || {
        poll::now(async {
            let mut session = policy.start::<Down>();
            while session.next().await.is_some() {
                if let Some(value) = session.run(fetch(id()), classify::all).await {
                    return Some(value);
                }
            }
            None
        })
    })
}

fn tower(name: &'static str, policy: Policy) -> Side<'static> {
    let mut service = RetryLayer::new(policy, classify::all::<Down>).layer(Fetch);
    Side::new(name, baseline::TOWER, move || call(&mut service))
}

fn blocking(name: &'static str, policy: Policy) -> Side<'static> {
    use blocking::Retry;
    Side::new(name, baseline::BLOCKING, move || {
        (|| read(id())).retry(&policy).classify(classify::all).call().ok()
    })
}
