//! Publishing and marking in the user's own PostgreSQL transaction.

use std::any::Any;
use std::time::Duration;

use redrive_core::Event;
use redrive_core::event::EventError;
use redrive_core::event::bounds::ID_BYTES_MAX;
use redrive_store::postgres::Wakeup;
use redrive_store::postgres::sqlx::PgTransaction;
use redrive_store::{Postgres, PublishError, Published, StoreError};

use super::transaction::{REMEMBER, check_handler};
use super::{Redrive, observe};

impl Redrive {
    /// Publishes an event in the caller's own transaction: the event exists if that commits, and never existed if it
    /// does not. The notification in the answer wakes the owner of the shard after the commit; without it, the owner
    /// finds the event within a fifth of a second.
    ///
    /// ```no_run
    /// # use redrive::{Event, Redrive, postgres::sqlx};
    /// # async fn example(redrive: &Redrive, pool: &sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut tx = pool.begin().await?;
    /// sqlx::query("INSERT INTO booking (guest) VALUES ('Ada')").execute(&mut *tx).await?;
    /// let (_, wakeup) = redrive.publish_in(&mut tx, Event::new("emails", "booking-7")).await?;
    /// tx.commit().await?;
    /// wakeup.wake();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`publish`](Self::publish), and [`StoreError::Elsewhere`] if the transaction is not in the database of the
    /// store. A transient error has spoilt the transaction: repeat all of it.
    pub async fn publish_in(
        &self,
        tx: &mut PgTransaction<'_>,
        event: Event,
    ) -> Result<(Published, Wakeup), PublishError> {
        let (queue, new) = self.prepare(event, self.now());
        let answer = match (self.database(), new) {
            (Ok(database), Ok(new)) => database.publish_in(tx, new).await,
            (_, Err(error)) => Err(error),
            (Err(error), _) => Err(error.into()),
        };
        let (answer, wakeup) = match answer {
            Ok((published, wakeup)) => (Ok(published), Some(wakeup)),
            Err(error) => (Err(error), None),
        };
        observe::published(&queue, &answer);
        let closed = || PublishError::Store(StoreError::Closed);
        Ok((answer?, wakeup.ok_or_else(closed)?))
    }

    /// The inbox of `handler`, for the caller's own transactions. The name carries a version, such as `projector.v1`:
    /// a handler that changes its effect takes a new version, and sees all events again.
    #[must_use]
    pub fn inbox(&self, handler: impl Into<String>) -> Inbox {
        Inbox { redrive: self.clone(), handler: handler.into(), remember: REMEMBER }
    }

    /// The database, if the store is in one.
    pub(crate) fn database(&self) -> Result<&Postgres, StoreError> {
        let store: &dyn Any = &*self.0.store;
        let why = || format!("the store is {}", self.domain());
        store.downcast_ref().ok_or_else(|| StoreError::Elsewhere { why: why() })
    }
}

/// The ids that a handler has processed. Made by [`Redrive::inbox`].
#[derive(Debug, Clone)]
pub struct Inbox {
    redrive: Redrive,
    handler: String,
    remember: Duration,
}

impl Inbox {
    /// How long a marker is kept at least. Default: a week.
    #[must_use]
    pub fn remember(mut self, time: Duration) -> Self {
        self.remember = time;
        self
    }

    /// Marks in the caller's transaction that the handler has processed `id`, and returns whether it is the first
    /// time. `false`: the effect is committed already, and there is nothing to do.
    ///
    /// Of two concurrent transactions the second waits for the first.
    ///
    /// # Errors
    /// For a name without a version, an id that is too long, or if the store operation fails; then repeat the whole
    /// transaction.
    pub async fn mark_in(&self, tx: &mut PgTransaction<'_>, id: &str) -> Result<bool, PublishError> {
        check_handler(&self.handler)?;
        for (part, text) in [("handler", self.handler.as_str()), ("id", id)] {
            if text.len() > ID_BYTES_MAX {
                let (bytes, max) = (text.len(), ID_BYTES_MAX);
                return Err(EventError::TooLong { part, bytes, max }.into());
            }
        }
        let until = self.redrive.now() + self.remember;
        let is_first = self.redrive.database()?.mark_in(tx, &self.handler, id, until).await?;
        super::observe::marked(is_first);
        Ok(is_first)
    }
}
