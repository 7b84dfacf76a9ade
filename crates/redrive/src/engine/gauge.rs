//! What can be measured at any time, for whoever shows it; and copies of the store.

use std::path::PathBuf;
use std::time::Duration;

use redrive_core::breaker::BreakerState;
use redrive_store::nodes::Nodes;
use redrive_store::{Figures, StoreError};

use super::Redrive;

/// How hard pressed what a queue calls is, by the queue's policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pressure {
    /// The queue.
    pub queue: String,
    /// What is called: the policy's name.
    pub target: String,
    /// Retries that could be made now, where there is a budget.
    pub budget_tokens: Option<u64>,
    /// Retries that were paid for, where there is a budget.
    pub budget_spent: Option<u64>,
    /// Whether calls are let through, where there is a breaker.
    pub breaker: Option<BreakerState>,
}

impl Redrive {
    /// The budgets and breakers of the queues that run here, as they are now.
    #[must_use]
    pub fn pressures(&self) -> Vec<Pressure> {
        // Budgets and breakers may be shared with calls outside the engine, and go by their clock.
        let now = redrive_retry::clock();
        let pressure = |queue: std::sync::Arc<super::queue::Queue>| {
            let policy = &queue.plan.policy;
            Pressure {
                queue: queue.name().to_owned(),
                target: policy.name().to_owned(),
                budget_tokens: policy.budget().map(|budget| budget.tokens(now)),
                budget_spent: policy.budget().map(redrive_core::Budget::spent),
                breaker: policy.breaker().map(|breaker| breaker.state(now)),
            }
        };
        self.0.queues.to_run().into_iter().map(pressure).collect()
    }

    /// For how long the oldest event of each queue could have run and did not end, where there is one that could.
    /// One that runs counts, and so does one of a queue that is paused; what is leased or in quarantine does not.
    ///
    /// # Errors
    /// Where the store cannot be read.
    pub async fn oldest_due(&self) -> Result<Vec<(String, Duration)>, StoreError> {
        let now = self.now();
        let oldest = self.store().oldest_due(now).await?;
        Ok(oldest.into_iter().map(|(queue, due)| (queue, now.since(due))).collect())
    }

    /// The store's own figures, since it was opened.
    #[must_use]
    pub fn figures(&self) -> Figures {
        self.store().figures()
    }

    /// The processes that share the store, and who of them owns which shard. `None`: the store has one owner at a time.
    ///
    /// # Errors
    /// Where the store cannot be read.
    pub async fn nodes(&self) -> Result<Option<Nodes>, StoreError> {
        self.store().nodes().await
    }

    /// Whether handlers are run here, and the store can be read.
    ///
    /// # Errors
    /// Why not: it was not started, it was stopped, or the store failed.
    pub async fn check(&self) -> Result<(), StoreError> {
        let Some(conductor) = self.0.conductor.get() else { return Err(StoreError::Closed) };
        if let Some(error) = conductor.failed.borrow().clone() {
            return Err(error);
        }
        if conductor.is_over() {
            return Err(StoreError::Closed);
        }
        self.store().controls().await.map(drop)
    }

    /// Writes a copy of the store to a file that is not there yet: all of it as of one moment, while everything goes
    /// on. See [`sqlite::restore`](redrive_store) for the way back.
    ///
    /// # Errors
    /// Where there is such a file, or the store is none that can be copied so.
    pub async fn backup(&self, to: impl Into<PathBuf>) -> Result<(), StoreError> {
        self.store().backup(to.into()).await
    }
}
