//! What a node does after it has read the table of shards.
//!
//! [`share`] decides which node should own which shard. The table may be older than what the node already
//! knows: a fencing token with a higher epoch than the table's was granted after the read. A node therefore
//! compares the shards it holds first, and rebalances after that.

use std::collections::BTreeMap;

use super::{NodeId, Rebalance, share};
use crate::queue_entry::FencingToken;

/// A shard in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardRow {
    /// Its owner, alive or dead.
    pub owner: Option<NodeId>,
    /// Its epoch.
    pub epoch: u64,
}

/// What a node has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeStep {
    /// Another node owns the shard now: forget it.
    Drop(FencingToken),
    /// Take a shard.
    Take(u32),
    /// Hand off the shard, once no attempt of it is running.
    Give(FencingToken),
}

/// The actions of `me`, given the `alive` nodes, the shards in `rows`, and the fencing tokens it holds.
///
/// A shard that belongs to `me` by the table but is not in `held` is taken again: the reply to a take was
/// lost, or the lease had lapsed for a while and no other node was quicker.
#[must_use]
pub fn steps(me: NodeId, alive: &[NodeId], rows: &[ShardRow], held: &[FencingToken]) -> Vec<NodeStep> {
    let mut mine: BTreeMap<u32, FencingToken> = BTreeMap::new();
    let mut steps = Vec::new();
    for token in held {
        let is_lost = rows
            .get(token.shard as usize)
            .is_none_or(|row| row.epoch > token.epoch || row.epoch == token.epoch && row.owner != Some(me));
        if is_lost {
            steps.push(NodeStep::Drop(*token));
        } else {
            mine.insert(token.shard, *token);
        }
    }
    let mut owners = Vec::with_capacity(rows.len());
    for (shard, row) in (0_u32..).zip(rows) {
        let is_mine = mine.contains_key(&shard);
        if row.owner == Some(me) && !is_mine {
            steps.push(NodeStep::Take(shard));
        }
        owners.push(if is_mine { Some(me) } else { row.owner });
    }
    for share in share(me, alive, &owners) {
        steps.extend(match share {
            Rebalance::Take(shard) => Some(NodeStep::Take(shard)),
            Rebalance::Release(shard) => mine.get(&shard).copied().map(NodeStep::Give),
        });
    }
    steps
}
