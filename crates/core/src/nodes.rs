//! Which node is to own which shard.
//!
//! Every node looks at the same table now and then (who is alive, who owns what) and works out by itself what it has
//! to do: take what is free and falls to it, give back what it has too much of. Nobody leads. Two nodes that look at
//! the same table never want the same shard; two that look at different ones may, and then the store lets one have it,
//! so that this is about evenness and never about safety: safe is the fence.
//!
//! Shares differ by one at most. A shard changes hands only where that makes shares more even: a node that joins is
//! given what others have too much of, and one that leaves is inherited from, and all other shards stay where they are.

use std::collections::BTreeMap;

mod table;
mod term;

pub use table::{Row, Step, steps};
pub use term::{Term, beat_every, look_in};

/// A node, for as long as it lives. Another start of the same program is another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

/// What a node has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Share {
    /// Take a shard that nobody who lives owns.
    Take(u32),
    /// Give a shard back, once nothing of it is under way.
    Release(u32),
}

/// What `me` has to do so that shards are shared out evenly among those `alive`, where `owners` says who owns each
/// shard, in their order. Who is not alive owns nothing, whatever it says.
#[must_use]
pub fn share(me: NodeId, alive: &[NodeId], owners: &[Option<NodeId>]) -> Vec<Share> {
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
    // In the order of nodes, so that all who see this table give the same shards to the same nodes.
    let mut wanting = 0;
    for (node, goal) in &goals {
        let wants = goal.saturating_sub(held[node].len());
        let given: Vec<u32> = free.by_ref().take(wants).collect();
        wanting += wants - given.len();
        if *node == me {
            steps.extend(given.into_iter().map(Share::Take));
        }
    }
    // Only what somebody wants for whom nothing was free; those before us in the order give first.
    for (node, goal) in &goals {
        let shards = &held[node];
        let spare = shards.len().saturating_sub(*goal).min(wanting);
        wanting -= spare;
        if *node == me {
            steps.extend(shards.iter().rev().take(spare).map(|shard| Share::Release(*shard)));
        }
    }
    steps
}

/// How many shards each node is to have. The larger shares go to those who have most already, so that as few as can be
/// change hands.
fn goals(held: &BTreeMap<NodeId, Vec<u32>>, shards: usize) -> BTreeMap<NodeId, usize> {
    let (least, larger) = (shards / held.len(), shards % held.len());
    let mut nodes: Vec<(&NodeId, usize)> = held.iter().map(|(node, shards)| (node, shards.len())).collect();
    nodes.sort_by_key(|(node, count)| (std::cmp::Reverse(*count), **node));
    let goal = |place| least + usize::from(place < larger);
    nodes.into_iter().enumerate().map(|(place, (node, _))| (*node, goal(place))).collect()
}
