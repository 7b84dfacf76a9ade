//! The kinds of handlers, behind one face.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use redrive_core::event::Cause;

use super::{Delivery, Reply, Transaction};

/// What a handler came to.
pub(super) enum Handled {
    /// It said something.
    Said(Reply),
    /// It did not run, because the payload is not one that it understands.
    Undecodable(Cause),
}

type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type One = Box<dyn Fn(Delivery) -> Later<Handled> + Send + Sync>;
type Batch = Box<dyn Fn(Vec<Delivery>) -> Later<Vec<Reply>> + Send + Sync>;
type Blocking = Arc<dyn Fn(Delivery) -> Reply + Send + Sync>;
type Transactional = Arc<dyn Fn(&mut Transaction<'_>, &Delivery) -> Reply + Send + Sync>;

/// What a queue does with an event.
pub(super) enum Handler {
    /// Nothing here: another process does.
    Elsewhere,
    /// Nothing here: workers outside lease its events.
    Pulled,
    /// One at a time.
    One(One),
    /// Several in one call.
    Batch {
        /// How many, at most.
        max: usize,
        /// What to call.
        run: Batch,
    },
    /// On a thread of its own, because it blocks.
    Blocking(Blocking),
    /// In the store's own transaction.
    Transactional(Transactional),
}

impl std::fmt::Debug for Handler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Elsewhere => "Elsewhere",
            Self::Pulled => "Pulled",
            Self::One(_) => "One",
            Self::Batch { .. } => "Batch",
            Self::Blocking(_) => "Blocking",
            Self::Transactional(_) => "Transactional",
        })
    }
}
