//! `redrive nodes`: the processes that share a store.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;

use super::client::{DeskClient, QueryParams, read};
use super::connect::ConnectArgs;
use super::output::{Output, roughly, say, table};
use crate::api::wire::{NodeJson, NodesJson};

/// List the nodes that share the store, and the shards each owns
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(super) async fn run(Args { connect }: Args) -> Result<ExitCode> {
    connect.run(list).await
}

async fn list(client: &DeskClient, out: &Output) -> Result<ExitCode> {
    let answer = client.get("/v1/nodes", &QueryParams::new()).await?;
    let nodes: NodesJson = read(&answer)?;
    out.answer(&answer, |_| {
        if !nodes.shared {
            say("this store has a single owner; it is not shared between nodes");
            return String::new();
        }
        let unowned = numbers(&nodes.unowned.unwrap_or_default());
        if !unowned.is_empty() {
            say(format_args!("without an owner: {unowned}"));
        }
        if nodes.nodes.is_empty() {
            say("no node runs queues");
            return String::new();
        }
        let rows: Vec<Vec<String>> = nodes.nodes.iter().map(row).collect();
        table(&["NODE", "NAME", "STATE", "SINCE", "LEASE LEFT", "SHARDS", "WHICH"], &rows)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn row(node: &NodeJson) -> Vec<String> {
    let state = match (node.alive, node.runs) {
        (true, true) => "runs",
        (true, false) => "looks",
        (false, _) => "lease expired",
    };
    let left = Duration::from_millis(node.lease_left_ms);
    let left = if left.is_zero() { "over".to_owned() } else { roughly(left) };
    let count = node.shards.len().to_string();
    vec![
        node.id.to_string(),
        node.name.clone(),
        state.to_owned(),
        node.since.clone(),
        left,
        count,
        numbers(&node.shards),
    ]
}

/// Formats numbers as `0-3, 7`.
fn numbers(list: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for number in list.iter().copied() {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let run = |(first, last): &(usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    runs.iter().map(run).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_numbers_are_shown_as_ranges() {
        for (list, shown) in [(&[][..], ""), (&[3], "3"), (&[0, 1, 2, 5, 7, 8], "0-2, 5, 7-8")] {
            assert_eq!(numbers(list), shown);
        }
    }
}
