//! Shards are shared out evenly, with as few moves as possible, and without a leader.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use proptest::prelude::*;
use redrive_core::nodes::{NodeId, Rebalance, share};

/// Every node reads the same table and performs its steps.
fn round(alive: &[NodeId], owners: &mut [Option<NodeId>]) -> usize {
    let table = owners.to_vec();
    let mut moved = 0;
    for node in alive {
        for step in share(*node, alive, &table) {
            moved += 1;
            match step {
                Rebalance::Take(shard) => {
                    let owner = &mut owners[shard as usize];
                    assert!(owner.is_none_or(|owner| !alive.contains(&owner)), "two took {shard}");
                    *owner = Some(*node);
                }
                Rebalance::Release(shard) => {
                    assert_eq!(owners[shard as usize], Some(*node), "{shard} is not its own");
                    owners[shard as usize] = None;
                }
            }
        }
    }
    moved
}

fn counts(alive: &[NodeId], owners: &[Option<NodeId>]) -> Vec<usize> {
    alive.iter().map(|node| owners.iter().filter(|owner| **owner == Some(*node)).count()).collect()
}

fn nodes(count: u64) -> Vec<NodeId> {
    (1..=count).map(NodeId).collect()
}

#[test]
fn one_node_takes_everything() {
    let mut owners = vec![None; 16];
    assert_eq!(round(&nodes(1), &mut owners), 16);
    assert_eq!(round(&nodes(1), &mut owners), 0);
}

#[test]
fn who_joins_is_given_its_share_and_nothing_else_moves() {
    let mut owners = vec![Some(NodeId(1)); 16];
    assert_eq!(round(&nodes(2), &mut owners), 8, "given back");
    assert_eq!(round(&nodes(2), &mut owners), 8, "taken");
    assert_eq!(round(&nodes(2), &mut owners), 0);
    assert_eq!(counts(&nodes(2), &owners), [8, 8]);
}

#[test]
fn what_the_dead_owned_is_taken_at_once() {
    let mut owners: Vec<_> = (0..15).map(|shard| Some(NodeId(shard % 3 + 1))).collect();
    let left = [NodeId(1), NodeId(3)];
    assert_eq!(round(&left, &mut owners), 5);
    assert_eq!(round(&left, &mut owners), 0);
}

#[test]
fn more_nodes_than_shards_leave_some_with_nothing() {
    let mut owners = vec![None; 2];
    round(&nodes(5), &mut owners);
    assert_eq!(round(&nodes(5), &mut owners), 0);
    assert_eq!(counts(&nodes(5), &owners).iter().sum::<usize>(), 2);
}

proptest! {
    #[test]
    fn from_any_table_it_is_even_after_two_rounds_and_then_rests(
        shards in 0_usize..70,
        count in 1_u64..9,
        seen in prop::collection::vec(prop::option::of(1_u64..12), 70),
    ) {
        let alive = nodes(count);
        let mut owners: Vec<_> = seen[..shards].iter().map(|owner| owner.map(NodeId)).collect();
        let before = owners.clone();
        round(&alive, &mut owners);
        round(&alive, &mut owners);
        prop_assert_eq!(round(&alive, &mut owners), 0, "it rests");
        let counts = counts(&alive, &owners);
        prop_assert_eq!(counts.iter().sum::<usize>(), shards, "everything is owned");
        prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{:?}", counts);
        // Only the surplus of nodes that owned too many moved.
        let moved = owners.iter().zip(&before).filter(|(now, then)| {
            then.is_some_and(|then| alive.contains(&then)) && now != then
        }).count();
        let least = shards / alive.len();
        let had = alive.iter().map(|node| before.iter().filter(|owner| **owner == Some(*node)).count());
        let excess: usize = had.map(|had| had.saturating_sub(least)).sum();
        prop_assert!(moved <= excess, "{} moved, {} had to at most", moved, excess);
    }
}
