//! The clerk: takes jobs further, step by step, while handlers run.
//!
//! Everything about a job is in the store, so the clerk remembers nothing. It looks when somebody started or changed
//! a job here, when a job's next step is due, and now and then for what another process has done.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::triage::{Job, JobState, Operator, Step};
use redrive_store::operate::{Advance, Order, What};
use redrive_store::{Store, StoreError};
use tokio::sync::Notify;

use super::Timepiece;

/// How often it looks for what it was not told of.
const LOOK: Duration = Duration::from_secs(1);
/// How soon it looks again where a job waits for what it put back.
const LOOK_SOON: Duration = Duration::from_millis(100);

/// Works until it is dropped, or the store is closed.
pub(super) async fn work(store: Arc<dyn Store>, clock: Arc<Timepiece>, news: Arc<Notify>) {
    loop {
        let wait = match round(&*store, &clock).await {
            Ok(wait) => wait,
            Err(StoreError::Closed | StoreError::Unknown { .. } | StoreError::Poisoned { .. }) => return,
            Err(error) => {
                super::observe::in_trouble(&error);
                LOOK
            }
        };
        if wait > Duration::ZERO {
            let _ = tokio::time::timeout(wait, news.notified()).await;
        } else {
            // A store in memory answers at once, and the others want their turn.
            tokio::task::yield_now().await;
        }
    }
}

/// Takes every job a step further; tells how long there is nothing to do.
async fn round(store: &dyn Store, clock: &Timepiece) -> Result<Duration, StoreError> {
    let mut wait = LOOK;
    for job in store.jobs(None).await? {
        if job.state == JobState::Running {
            wait = wait.min(step(store, clock, job).await?);
        }
    }
    Ok(wait)
}

async fn step(store: &dyn Store, clock: &Timepiece, job: Job) -> Result<Duration, StoreError> {
    let now = clock.now();
    match job.next(now) {
        Step::Take(most) => {
            store.advance(Advance { job: job.id, from: job.cursor, most, at: now }).await?;
            Ok(Duration::ZERO)
        }
        Step::Wait(Some(until)) => Ok(until.since(now)),
        Step::Wait(None) => Ok(LOOK_SOON),
        Step::End(state, why) => {
            let what = What::Turn(job.id, state, why);
            store.operate(Order { by: Operator::engine(), at: now, what }).await?;
            Ok(Duration::ZERO)
        }
    }
}
