//! The report: a table for people, target lines and figures for tools.

use std::time::Duration;

use redrive_benches::conditions::Conditions;
use redrive_benches::measure::median;
use redrive_benches::target::{Goal, Target};
use serde_json::json;

use crate::BATCH;
use crate::contenders::Side;

/// Everything that was measured.
pub(crate) struct Run {
    pub(crate) conditions: Conditions,
    pub(crate) load: Option<f64>,
    pub(crate) rounds: u32,
    pub(crate) time: Duration,
    pub(crate) deliveries: u32,
    pub(crate) took: Duration,
    pub(crate) rows: Vec<Row>,
}

/// One thing that is measured, a rate for each round.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) side: Side,
    pub(crate) batch: usize,
    pub(crate) rates: Vec<f64>,
}

impl Row {
    pub(crate) fn all() -> Vec<Self> {
        let row = |name, side, batch| Self { name, side, batch, rates: Vec::new() };
        vec![
            row("axum that answers 202, single", Side::Plain, 1),
            row("the engine alone, single", Side::Engine, 1),
            row("redrive serve, single", Side::Server, 1),
            row("axum that answers 202, batches of 100", Side::Plain, BATCH),
            row("the engine alone, batches of 100", Side::Engine, BATCH),
            row("redrive serve, batches of 100", Side::Server, BATCH),
            row("a client that only posts", Side::Sender, 1),
            row("redrive serve, deliveries", Side::Push, 1),
        ]
    }
}

pub(crate) fn report(run: &Run) {
    let Run { conditions, load, rounds, time, deliveries, took, rows } = run;
    let load = load.map_or_else(|| "-".to_owned(), |load| format!("{load:.1}"));
    println!("Events of 256 bytes over HTTP on loopback, 64 connections. {conditions}, load {load} before.");
    println!(
        "{rounds} rounds of {:.1} s, or of {deliveries} deliveries, in turns, {:.0} s in all; medians.\n",
        time.as_secs_f64(),
        took.as_secs_f64()
    );
    println!("{:<42}{:>12}{:>22}", "", "events/s", "least–most");
    for Row { name, rates, .. } in rows {
        let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
        let most = rates.iter().copied().fold(0.0, f64::max);
        println!("{name:<42}{:>12.0}{:>22}", median(rates.iter().copied()), format!("{least:.0}–{most:.0}"));
    }
    println!();
    for target in targets(rows) {
        println!("{target}");
    }
    let figures: Vec<_> = rows.iter().map(|row| json!({ "name": row.name, "rates": row.rates })).collect();
    println!("figures {}", json!({ "rounds": rounds, "rows": figures }));
}

/// Formed round by round, because what a machine can do changes from one to the next.
fn ratio(rows: &[Row], one: (Side, usize), other: (Side, usize)) -> f64 {
    let rates = |(side, batch)| {
        rows.iter().find(|row| (row.side, row.batch) == (side, batch)).map_or(&[][..], |row| &row.rates)
    };
    median(rates(one).iter().zip(rates(other)).map(|(one, other)| one / other))
}

/// Floors, chosen after the first run, to notice when it becomes slower.
fn targets(rows: &[Row]) -> Vec<Target> {
    let target = |name, one, other, goal| {
        let value = ratio(rows, one, other);
        Target { name, value, goal: Goal::AtLeast(goal), digits: 2 }
    };
    vec![
        target("server.single_of_plain", (Side::Server, 1), (Side::Plain, 1), 0.2),
        target("server.single_of_engine", (Side::Server, 1), (Side::Engine, 1), 0.5),
        target("server.batch_of_plain", (Side::Server, BATCH), (Side::Plain, BATCH), 0.05),
        target("server.batch_of_engine", (Side::Server, BATCH), (Side::Engine, BATCH), 0.5),
        target("server.deliveries_of_client", (Side::Push, 1), (Side::Sender, 1), 0.33),
    ]
}
