//! The kinds of handlers, behind one type.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use redrive_core::event::Cause;

use crate::engine::{Delivery, Reply, Transaction};

/// The result of a handler.
pub(in crate::engine) enum Handled {
    /// Its reply.
    AttemptEnd(Reply),
    /// It did not run, because the payload does not decode.
    Undecodable(Cause),
}

type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type One = Box<dyn Fn(Delivery) -> Later<Handled> + Send + Sync>;
type Batch = Box<dyn Fn(Vec<Delivery>) -> Later<Vec<Reply>> + Send + Sync>;
type Blocking = Arc<dyn Fn(Delivery) -> Reply + Send + Sync>;
type Transactional = Arc<dyn Fn(&mut Transaction<'_>, &Delivery) -> Reply + Send + Sync>;

/// How a queue handles its events.
pub(in crate::engine) enum Handler {
    /// Not here: another process runs them.
    Elsewhere,
    /// Not here: workers outside the engine lease them.
    Pulled,
    /// One event in a call.
    One(One),
    /// Several events in one call.
    Batch {
        /// How many, at most.
        max: usize,
        /// The function to call.
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
