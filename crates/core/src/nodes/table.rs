//! What a node does about a table that it has looked at.
//!
//! [`share`] says who is to own what. Between a look and what is done about it things happen, and a table may be older
//! than what a node knows by itself: a grant with a higher epoch than the table's was given after the look. So what a
//! node has is compared first; only then is shared.

use std::collections::BTreeMap;

use super::{NodeId, Share, share};
use crate::entry::Grant;

/// A shard in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Who owns it, or did when it died.
    pub owner: Option<NodeId>,
    /// Its epoch.
    pub epoch: u64,
}

/// What a node has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Somebody else has it by now: forget it.
    Drop(Grant),
    /// Take a shard.
    Take(u32),
    /// Give it back, once nothing of it is under way.
    Give(Grant),
}

/// What `me` has to do, where those are alive, the shards are so, and `held` is what it was granted and goes by.
///
/// A shard that is its own by the table and not by what it holds is taken anew: the answer to a take was lost, or its
/// lease was over for a while and nobody else was quicker.
#[must_use]
pub fn steps(me: NodeId, alive: &[NodeId], rows: &[Row], held: &[Grant]) -> Vec<Step> {
    let mut mine: BTreeMap<u32, Grant> = BTreeMap::new();
    let mut steps = Vec::new();
    for grant in held {
        let is_lost = rows
            .get(grant.shard as usize)
            .is_none_or(|row| row.epoch > grant.epoch || row.epoch == grant.epoch && row.owner != Some(me));
        if is_lost {
            steps.push(Step::Drop(*grant));
        } else {
            mine.insert(grant.shard, *grant);
        }
    }
    let mut owners = Vec::with_capacity(rows.len());
    for (shard, row) in (0_u32..).zip(rows) {
        let is_mine = mine.contains_key(&shard);
        if row.owner == Some(me) && !is_mine {
            steps.push(Step::Take(shard));
        }
        owners.push(if is_mine { Some(me) } else { row.owner });
    }
    for share in share(me, alive, &owners) {
        steps.extend(match share {
            Share::Take(shard) => Some(Step::Take(shard)),
            Share::Release(shard) => mine.get(&shard).copied().map(Step::Give),
        });
    }
    steps
}
