//! Which node should own which shard.
//!
//! Every node regularly reads the same table (which nodes are alive, which node owns which shard) and
//! computes its own actions: take free shards that fall to it, hand off shards that it has too many of. There
//! is no leader. Two nodes that read the same table never want the same shard. Two nodes that read different
//! tables may, and then the store gives it to one of them. Rebalancing is therefore about evenness, not
//! safety: the fencing token keeps it safe.
//!
//! Shares differ by at most one. A shard changes owner only to make shares more even: a node that joins gets
//! the surplus of other nodes, the shards of a node that leaves are shared out, and all other shards stay
//! where they are.

use std::collections::BTreeMap;

mod lease_clock;
mod table;

pub use lease_clock::{LeaseClock, beat_every, look_in};
pub use table::{NodeStep, ShardRow, steps};

/// A node, for the life of its process. A restart of the same program is a new node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

/// What a node has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rebalance {
    /// Take a shard that has no live owner.
    Take(u32),
    /// Hand off a shard, once no attempt of it is running.
    Release(u32),
}

/// The actions of `me` that spread the shards evenly over the `alive` nodes. `owners` lists the owner of each
/// shard, in order. A node that is not alive counts as owning nothing.
#[must_use]
pub fn share(me: NodeId, alive: &[NodeId], owners: &[Option<NodeId>]) -> Vec<Rebalance> {
    let mut held: BTreeMap<NodeId, Vec<u32>> = alive.iter().map(|node| (*node, Vec::new())).collect();
    held.entry(me).or_default();
    let mut free = Vec::new();
    for (shard, owner) in (0_u32..).zip(owners) {
        match owner.and_then(|owner| held.get_mut(&owner)) {
            Some(shards) => shards.push(shard),
            None => free.push(shard),
        }
    }
    let goals = goals(&held, owners.len());
    let mut steps = Vec::new();
    let mut free = free.into_iter();
    // In node order, so that all nodes that read this table assign the same shards to the same nodes.
    let mut wanting = 0;
    for (node, goal) in &goals {
        let wants = goal.saturating_sub(held[node].len());
        let given: Vec<u32> = free.by_ref().take(wants).collect();
        wanting += wants - given.len();
        if *node == me {
            steps.extend(given.into_iter().map(Rebalance::Take));
        }
    }
    // Hand off only shards that another node still needs after the free ones are assigned; nodes before us in
    // the order hand off first.
    for (node, goal) in &goals {
        let shards = &held[node];
        let spare = shards.len().saturating_sub(*goal).min(wanting);
        wanting -= spare;
        if *node == me {
            steps.extend(shards.iter().rev().take(spare).map(|shard| Rebalance::Release(*shard)));
        }
    }
    steps
}

/// How many shards each node should own. The larger shares go to the nodes that own most already, so that as
/// few shards as possible change owner.
fn goals(held: &BTreeMap<NodeId, Vec<u32>>, shards: usize) -> BTreeMap<NodeId, usize> {
    let (least, larger) = (shards / held.len(), shards % held.len());
    let mut nodes: Vec<(&NodeId, usize)> = held.iter().map(|(node, shards)| (node, shards.len())).collect();
    nodes.sort_by_key(|(node, count)| (std::cmp::Reverse(*count), **node));
    let goal = |place| least + usize::from(place < larger);
    nodes.into_iter().enumerate().map(|(place, (node, _))| (*node, goal(place))).collect()
}
