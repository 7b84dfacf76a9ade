//! Gauges for dashboards and metrics; and backups of the store.

use std::path::PathBuf;
use std::time::Duration;

use redrive_core::breaker::BreakerState;
use redrive_store::nodes::NodeList;
use redrive_store::{CommitAndDiskStats, StoreError};

use super::Redrive;

/// The load on the service that a queue calls, by the queue's policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DownstreamLoad {
    /// The queue.
    pub queue: String,
    /// The called service: the policy's name.
    pub target: String,
    /// Retries that the budget allows now, if there is a budget.
    pub budget_tokens: Option<u64>,
    /// Retries charged to the budget, if there is a budget.
    pub budget_spent: Option<u64>,
    /// The state of the breaker, if there is one.
    pub breaker: Option<BreakerState>,
}

impl Redrive {
    /// The present budgets and breakers of the queues that run here.
    #[must_use]
    pub fn pressures(&self) -> Vec<DownstreamLoad> {
        // Budgets and breakers may be shared with calls outside the engine, and use their clock.
        let now = redrive_retry::clock();
        let pressure = |queue: std::sync::Arc<super::queue::Queue>| {
            let policy = &queue.plan.policy;
            DownstreamLoad {
                queue: queue.name().to_owned(),
                target: policy.name().to_owned(),
                budget_tokens: policy.budget().map(|budget| budget.tokens(now)),
                budget_spent: policy.budget().map(redrive_core::Budget::spent),
                breaker: policy.breaker().map(|breaker| breaker.state(now)),
            }
        };
        self.0.queues.to_run().into_iter().map(pressure).collect()
    }

    /// For each queue with a due event, how long its oldest one has been due without ending. Running events and events
    /// of a paused queue count; leased and quarantined ones do not.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn oldest_due(&self) -> Result<Vec<(String, Duration)>, StoreError> {
        let now = self.now();
        let oldest = self.store().oldest_due(now).await?;
        Ok(oldest.into_iter().map(|(queue, due)| (queue, now.since(due))).collect())
    }

    /// How many events of each queue failed and are retried, and for how long the oldest of them has failed.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn retrying(&self) -> Result<Vec<(String, u64, Duration)>, StoreError> {
        let retrying = self.store().retrying().await?;
        let now = self.now();
        Ok(retrying.into_iter().map(|one| (one.queue, one.events, now.since(one.since))).collect())
    }

    /// The store's own statistics since it was opened.
    #[must_use]
    pub fn figures(&self) -> CommitAndDiskStats {
        self.store().figures()
    }

    /// The processes that share the store, and their shards. `None`: the store has one owner at a time.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn nodes(&self) -> Result<Option<NodeList>, StoreError> {
        self.store().nodes().await
    }

    /// Checks that handlers run here and the store can be read.
    ///
    /// # Errors
    /// If the engine was not started or was stopped, or the store failed.
    pub async fn check(&self) -> Result<(), StoreError> {
        let Some(driver) = self.0.driver.get() else { return Err(StoreError::Closed) };
        if let Some(error) = driver.failed.borrow().clone() {
            return Err(error);
        }
        if driver.is_over() {
            return Err(StoreError::Closed);
        }
        self.store().controls().await.map(drop)
    }

    /// Writes a backup of the store to a new file: a consistent copy of one moment, while everything goes on. See
    /// [`sqlite::restore`](redrive_store) for the way back.
    ///
    /// # Errors
    /// If the file exists, or the store does not support backups.
    pub async fn backup(&self, to: impl Into<PathBuf>) -> Result<(), StoreError> {
        self.store().backup(to.into()).await
    }
}
