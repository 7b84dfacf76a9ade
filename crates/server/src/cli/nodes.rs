//! `redrive nodes`: the processes that share a store.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;

use super::line::{Line, Pairs};
use super::out::{Out, roughly, say, table, text};
use super::reach::Reach;

/// The processes that share the store: who lives, and who owns which shard
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    reach: Reach,
}

pub(super) async fn run(Args { reach }: Args) -> Result<ExitCode> {
    reach.run(list).await
}

async fn list(line: &Line, out: &Out) -> Result<ExitCode> {
    let answer = line.get("/v1/nodes", &Pairs::new()).await?;
    out.answer(&answer, |answer| {
        if answer["shared"] != Value::Bool(true) {
            say("this store has one owner at a time, and nobody to share with");
            return String::new();
        }
        let rows: Vec<Vec<String>> = answer["nodes"].as_array().into_iter().flatten().map(row).collect();
        let unowned = numbers(&answer["unowned"]);
        if !unowned.is_empty() {
            say(format_args!("nobody owns {unowned}"));
        }
        if rows.is_empty() {
            say("nobody runs anything");
            return String::new();
        }
        table(&["NODE", "NAME", "STATE", "SINCE", "LEASE LEFT", "SHARDS", "WHICH"], &rows)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn row(node: &Value) -> Vec<String> {
    let word = match (node["alive"] == Value::Bool(true), node["runs"] == Value::Bool(true)) {
        (true, true) => "runs",
        (true, false) => "looks",
        (false, _) => "not heard of",
    };
    let left = Duration::from_millis(node["lease_left_ms"].as_u64().unwrap_or_default());
    let left = if left.is_zero() { "over".to_owned() } else { roughly(left) };
    let count = node["shards"].as_array().map_or(0, Vec::len).to_string();
    vec![
        text(node, "id"),
        text(node, "name"),
        word.to_owned(),
        text(node, "since"),
        left,
        count,
        numbers(&node["shards"]),
    ]
}

/// Numbers, as `0-3, 7`.
fn numbers(list: &Value) -> String {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for number in list.as_array().into_iter().flatten().filter_map(Value::as_u64) {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let run = |(first, last): &(u64, u64)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    runs.iter().map(run).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_in_a_row_are_told_together() {
        for (list, told) in [
            (json!([]), ""),
            (json!([3]), "3"),
            (json!([0, 1, 2, 5, 7, 8]), "0-2, 5, 7-8"),
            (json!(null), ""),
        ] {
            assert_eq!(numbers(&list), told);
        }
    }
}
