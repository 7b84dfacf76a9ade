//! The job runner: advances jobs step by step while handlers run.
//!
//! The state of a job is in the store, so the runner remembers nothing. It wakes when this process started or changed
//! a job, when a job's next step is due, and periodically for changes by other processes.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::triage::{Job, JobState, JobStep, Operator};
use redrive_store::operate::{JobAdvance, OperatorAction, OperatorCommand};
use redrive_store::{Store, StoreError};
use tokio::sync::Notify;

use super::EventClock;

/// How often it looks for changes by other processes.
const LOOK: Duration = Duration::from_secs(1);
/// How soon it looks again while a job waits for the events that it redrove.
const LOOK_SOON: Duration = Duration::from_millis(100);

/// Runs until it is dropped, or the store is closed.
pub(super) async fn work(store: Arc<dyn Store>, clock: Arc<EventClock>, news: Arc<Notify>) {
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
            // A store in memory answers at once, and other tasks need their turn.
            tokio::task::yield_now().await;
        }
    }
}

/// Takes every job one step further; returns how long there is nothing to do.
async fn round(store: &dyn Store, clock: &EventClock) -> Result<Duration, StoreError> {
    let mut wait = LOOK;
    for job in store.jobs(None).await? {
        if job.state == JobState::Running {
            wait = wait.min(step(store, clock, job).await?);
        }
    }
    Ok(wait)
}

async fn step(store: &dyn Store, clock: &EventClock, job: Job) -> Result<Duration, StoreError> {
    let now = clock.now();
    match job.next(now) {
        JobStep::Take(most) => {
            store.advance(JobAdvance { job: job.id, from: job.cursor, most, at: now }).await?;
            Ok(Duration::ZERO)
        }
        JobStep::Wait(Some(until)) => Ok(until.since(now)),
        JobStep::Wait(None) => Ok(LOOK_SOON),
        JobStep::End(state, why) => {
            let what = OperatorAction::Turn(job.id, state, why);
            store.operate(OperatorCommand { by: Operator::engine(), at: now, what }).await?;
            Ok(Duration::ZERO)
        }
    }
}
