//! Shards and their owners. A store with one owner at a time has one shard, and keeps the default methods.

use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::queue_entry::{FencingToken, TakenShard};

use super::StoreFuture;
use crate::nodes::{NodeLease, NodeList};

/// The part of a [`Store`](super::Store) that says which process owns which shard.
pub trait ShardStore {
    /// The number of shards, fixed when the store is made.
    fn shards(&self) -> u32;

    /// Takes a shard and raises its epoch: late settles of the previous owner change nothing.
    ///
    /// # Errors
    /// [`StoreError::NotOwner`](crate::StoreError::NotOwner) if another process owns it.
    fn take(&self, shard: u32, now: Moment) -> StoreFuture<TakenShard>;

    /// Hands a shard back after a clean stop. No attempt may be running.
    fn release(&self, token: FencingToken) -> StoreFuture<()>;

    /// Hands a shard back without a clean stop: the next owner treats running attempts as suspect. Does nothing in a
    /// store that is not shared.
    fn abandon(&self, token: FencingToken) -> StoreFuture<()> {
        let _ = token;
        Box::pin(std::future::ready(Ok(())))
    }

    /// The lease of this process among those that share the store. `None` if the store has one owner at a time.
    fn node_lease(&self) -> Option<Arc<NodeLease>> {
        None
    }

    /// Says whether this process runs handlers, and takes part in sharing out the shards.
    fn enlist(&self, runs: bool) -> StoreFuture<()> {
        let _ = runs;
        Box::pin(std::future::ready(Ok(())))
    }

    /// The processes that share the store, and which shards each owns. `None` if the store has one owner at a time.
    fn nodes(&self) -> StoreFuture<Option<NodeList>> {
        Box::pin(std::future::ready(Ok(None)))
    }
}
