//! Retry budget: many callers of a service that is down.
//!
//! Off, each call is tried four times, so the service that is down gets four times its load. On, all callers share a
//! budget: retries add a tenth.

use anyhow::Result;
use redrive::http::Client;
use redrive::{Backoff, Budget, Policy};

use crate::life::Life;

/// How many requests the callers have: one more than crash points.
pub(crate) const REQUESTS: u64 = 21;

pub(super) async fn live(life: &Life) -> Result<()> {
    let policy = Policy::builder().attempts(4).backoff(Backoff::NONE);
    let policy = if life.is_guarded() { policy.budget(Budget::share_of(0.1)?) } else { policy.no_budget() };
    let client = Client::new(reqwest::Client::new(), policy.build()?);
    let asked = life.noted("asked").len();
    for n in asked..usize::try_from(REQUESTS)? {
        let get = client.get(life.witness.url("/down"));
        let get = get.with(|get| get.header("x-run", life.witness.run()).header("x-id", "call"));
        // The service is down: neither an answer of 500 nor a refusal of the budget is news.
        let _ = get.send().await;
        life.crash_point();
        life.note("asked", &n.to_string())?;
    }
    Ok(())
}
