//! What was measured, in a table, and beside what was aimed for.

use std::time::Duration;

use redrive_benches::conditions::Conditions;
use redrive_benches::measure::median;
use redrive_benches::target::{Goal, Target};
use serde_json::json;

use crate::contenders::Side;
use crate::load::Keys;
use crate::rival;

/// Everything that was measured.
pub(crate) struct Run {
    pub(crate) conditions: Conditions,
    pub(crate) load: Option<f64>,
    pub(crate) rounds: u32,
    pub(crate) time: Duration,
    pub(crate) took: Duration,
    pub(crate) rows: Vec<Row>,
}

/// One thing that is measured, a figure for each round.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) side: Side,
    /// None where it is no server.
    pub(crate) keys: Option<Keys>,
    pub(crate) rates: Vec<f64>,
    pub(crate) micros: Vec<f64>,
}

impl Row {
    pub(crate) fn all(rivals: bool) -> Vec<Self> {
        let row = |name: &str, side, keys| Self {
            name: name.to_owned(),
            side,
            keys,
            rates: Vec::new(),
            micros: Vec::new(),
        };
        let mut rows = vec![
            row("the handler alone", Side::Bare, Some(Keys::Fresh)),
            row("replayed, over a file", Side::File, Some(Keys::Replayed)),
            row("fresh, over a file", Side::File, Some(Keys::Fresh)),
            row("claim and end, no HTTP", Side::Verbs, None),
            row("the same rows by plain SQL", Side::Raw, None),
            row("replayed, over memory", Side::Memory, Some(Keys::Replayed)),
            row("fresh, over memory", Side::Memory, Some(Keys::Fresh)),
        ];
        if rivals {
            rows.push(row(&format!("replayed, {}, memory", rival::NAME), Side::Rival, Some(Keys::Replayed)));
            rows.push(row(&format!("fresh, {}, memory", rival::NAME), Side::Rival, Some(Keys::Fresh)));
        }
        rows
    }
}

pub(crate) fn report(run: &Run) {
    let Run { conditions, load, rounds, time, took, rows } = run;
    let load = load.map_or_else(|| "-".to_owned(), |load| format!("{load:.1}"));
    println!("POSTs under idempotency keys on loopback, 64 connections. {conditions}, load {load} before.");
    println!(
        "{rounds} rounds of {:.1} s, in turns, {:.0} s in all; medians. CPU is the server's, for a request.\n",
        time.as_secs_f64(),
        took.as_secs_f64()
    );
    println!("{:<42}{:>12}{:>18}{:>10}{:>16}", "", "requests/s", "least–most", "CPU µs", "least–most");
    for Row { name, rates, micros, .. } in rows {
        let span = |values: &[f64], digits: usize| {
            let least = values.iter().copied().fold(f64::INFINITY, f64::min);
            let most = values.iter().copied().fold(0.0, f64::max);
            if values.is_empty() { "-".to_owned() } else { format!("{least:.digits$}–{most:.digits$}") }
        };
        let cpu =
            if micros.is_empty() { "-".to_owned() } else { format!("{:.1}", median(micros.iter().copied())) };
        let rate = median(rates.iter().copied());
        println!("{name:<42}{rate:>12.0}{:>18}{cpu:>10}{:>16}", span(rates, 0), span(micros, 1));
    }
    println!();
    for target in targets(rows) {
        println!("{target}");
    }
    let figures: Vec<_> = rows
        .iter()
        .map(|row| json!({ "name": row.name, "rates": row.rates, "cpu_us": row.micros }))
        .collect();
    println!("figures {}", json!({ "rounds": rounds, "rows": figures }));
}

/// Formed round by round, because what a machine can do changes from one to the next.
fn targets(rows: &[Row]) -> Vec<Target> {
    let row = |side, keys| rows.iter().find(|row| (row.side, row.keys) == (side, keys));
    let micros = |side, keys| row(side, Some(keys)).map_or(&[][..], |row| &row.micros);
    let rates = |side, keys| row(side, keys).map_or(&[][..], |row| &row.rates);
    let bare = micros(Side::Bare, Keys::Fresh);
    let over = micros(Side::File, Keys::Replayed).iter().zip(bare).map(|(layer, bare)| layer - bare);
    let fresh = rates(Side::File, Some(Keys::Fresh));
    let of_raw = fresh.iter().zip(rates(Side::Raw, None)).map(|(layer, raw)| layer / raw);
    let of_verbs = fresh.iter().zip(rates(Side::Verbs, None)).map(|(layer, verbs)| layer / verbs);
    let target = |name, value, goal, digits| Target { name, value, goal, digits };
    vec![
        target("ledger.replay_over_bare_us", median(over), Goal::AtMost(10.0), 1),
        target("ledger.fresh_of_raw", median(of_raw), Goal::AtLeast(0.5), 2),
        target("ledger.fresh_of_verbs", median(of_verbs), Goal::AtLeast(0.5), 2),
    ]
}
