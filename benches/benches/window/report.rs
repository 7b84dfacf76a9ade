//! The report: tables for people, target lines and figures for tools.

use std::time::Duration;

use redrive_benches::conditions::Conditions;
use redrive_benches::target::{Goal, Target};
use serde_json::{Value, json};

use crate::contenders::{OURS, Order, PLAIN};
use crate::{checks, commits, opening};

/// Everything that was measured.
pub(crate) struct Run {
    pub(crate) conditions: Conditions,
    /// What others did on this machine before the start.
    pub(crate) load: Option<f64>,
    pub(crate) ids: usize,
    pub(crate) rounds: usize,
    pub(crate) took: Duration,
    pub(crate) checks: Vec<checks::Figures>,
    pub(crate) commits: Vec<commits::Figures>,
    pub(crate) opening: opening::Figures,
}

pub(crate) fn report(run: &Run) {
    let Run { conditions, load, ids, rounds, took, checks, commits, opening } = run;
    let load = load.map_or_else(|| "-".to_owned(), |load| format!("{load:.1}"));
    println!("A window of {ids} ids of 36 bytes. {conditions}, load {load} before.");
    println!("{rounds} rounds, all sides in turns, {:.0} s in all; medians.\n", took.as_secs_f64());
    println!(
        "{:<34}{:>11}{:>10}{:>13}{:>12}{:>14}{:>13}",
        "in memory, ids", "bytes/id", "fill ns", "seen ns", "new ns", "seen/s", "new/s"
    );
    for side in checks {
        println!(
            "{:<34}{:>11.1}{:>10.0}{:>13.0}{:>12.0}{:>14.0}{:>13.0}",
            format!("{}, {}", side.name, side.order.name()),
            side.bytes,
            side.fill,
            side.seen,
            side.new,
            1e9 / side.seen,
            1e9 / side.new,
        );
    }
    println!("\nclaim and commit, by callers that each wait for theirs\n");
    println!("{:>7}{:>16}{:>16}{:>12}{:>14}", "callers", "memory/s", "file/s", "syncs/s", "ids a sync");
    for it in commits {
        let commits::Figures { callers, memory, file, syncs } = it;
        println!("{callers:>7}{memory:>16.0}{file:>16.0}{syncs:>12.0}{:>14.1}", file / syncs);
    }
    println!(
        "\na file of {ids} ids: written in {:.1} s, opened in {:.2} s, {:.1} bytes an id\n",
        opening.written.as_secs_f64(),
        opening.opened.as_secs_f64(),
        opening.bytes
    );
    for target in targets(checks) {
        println!("{target}");
    }
    println!("figures {}", as_json(run));
}

/// New ids that ascend are the best that can happen to a tree: it then works at its two ends alone.
fn targets(checks: &[checks::Figures]) -> Vec<Target> {
    let of = |name: &str, order: Order, figure: fn(&checks::Figures) -> f64| {
        checks.iter().find(|side| side.name == name && side.order == order).map_or(f64::NAN, figure)
    };
    let against = |name, order, figure: fn(&checks::Figures) -> f64| {
        let value = of(PLAIN, order, figure) / of(OURS, order, figure);
        Target { name, value, goal: Goal::AtLeast(2.0), digits: 2 }
    };
    vec![
        against("window.bytes.times_less", Order::Random, |side| side.bytes),
        against("window.seen.times_faster", Order::Random, |side| side.seen),
        against("window.new.times_faster", Order::Random, |side| side.new),
        against("window.ascending.seen.times_faster", Order::Ascending, |side| side.seen),
        // Short so far. It stays, because a bench that leaves out the row it loses says less than it seems to.
        against("window.ascending.new.times_faster", Order::Ascending, |side| side.new),
    ]
}

fn as_json(run: &Run) -> Value {
    let Conditions { cpu, cores, rustc } = &run.conditions;
    let checks = run.checks.iter().map(|side| {
        json!({
            "side": side.name, "order": side.order.name(), "bytes_an_id": rounded(side.bytes),
            "fill_ns": rounded(side.fill), "seen_ns": rounded(side.seen), "new_ns": rounded(side.new),
        })
    });
    let commits = run.commits.iter().map(|it| {
        json!({
            "callers": it.callers, "memory_a_second": rounded(it.memory), "file_a_second": rounded(it.file),
            "syncs_a_second": rounded(it.syncs),
        })
    });
    json!({
        "cpu": cpu, "cores": cores, "rustc": rustc, "load": run.load, "ids": run.ids, "rounds": run.rounds,
        "checks": checks.collect::<Vec<_>>(), "commits": commits.collect::<Vec<_>>(),
        "opening": {
            "written_seconds": rounded(run.opening.written.as_secs_f64()),
            "opened_seconds": run.opening.opened.as_secs_f64(),
            "bytes_an_id": rounded(run.opening.bytes),
        },
    })
}

/// To a tenth: further digits are noise.
fn rounded(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
