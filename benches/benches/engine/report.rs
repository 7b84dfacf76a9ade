//! The report: tables for people, target lines and figures for tools.

use std::time::Duration;

use redrive_benches::conditions::Conditions;
use redrive_benches::measure::median;
use redrive_benches::target::{Goal, Target};
use redrive_benches::turn::{Publisher, Work};
use serde_json::{Value, json};

use crate::contender::{Batch, Contender};
use crate::race::{Figures, Plan, Race};

/// Everything that was measured.
pub(crate) struct Run<'a> {
    pub(crate) conditions: Conditions,
    /// The machine's load before the start.
    pub(crate) load: Option<f64>,
    pub(crate) file_system: String,
    pub(crate) plan: Plan,
    pub(crate) took: Duration,
    pub(crate) races: Vec<(&'a Race, Vec<Figures>)>,
    pub(crate) waits: Vec<Waits>,
}

/// The ways in which ours is handed events.
const PUBLISHERS: [Publisher; 2] = [Publisher::Each, Publisher::Bulk];

/// Two waits of one round, the median of each, in microseconds.
pub(crate) struct Waits {
    /// For one sync of this disk.
    pub(crate) sync: f64,
    /// From publish to handler, when nothing else goes on; none without our side.
    pub(crate) event: Option<f64>,
}

pub(crate) fn report(run: &Run<'_>) {
    let Run { conditions, load, file_system, plan, took, races, waits } = run;
    let load = load.map_or_else(|| "-".to_owned(), |load| format!("{load:.1}"));
    println!("Durable events, 256 bytes each. {conditions}, {file_system}, load {load} before.");
    println!(
        "{} rounds of {:.1} s for each contender, in turns, {:.0} s in all; medians.",
        plan.rounds,
        plan.time.as_secs_f64(),
        took.as_secs_f64()
    );
    println!("batch: writes in a transaction. A life cycle is two writes: its publish and its end.");
    for (race, figures) in races {
        println!("\n{}\n", race.title);
        table(figures);
    }
    println!("\nOne event at a time\n");
    println!("{:<40}{:>11}{:>19}", "", "p50 µs", "least–most");
    wait("one sync: 4 KiB appended, fdatasync", waits.iter().map(|it| it.sync).collect());
    wait("redrive, publish to handler", waits.iter().filter_map(|it| it.event).collect());
    println!();
    for target in targets(run) {
        println!("{target}");
    }
    println!("figures {}", as_json(run));
}

fn table(figures: &[Figures]) {
    println!(
        "{:<40}{:>11}{:>19}{:>9}{:>9}  settings",
        "contender", "a second", "least–most", "batch", "syncs/s"
    );
    for side in figures {
        let Figures { who, rates, batch, syncs, settings } = side;
        println!(
            "{:<40}{:>11.0}{:>19}{batch:>9.1}{:>9}  {settings}",
            who.name(),
            side.rate(),
            span(rates),
            syncs.map_or_else(|| "-".to_owned(), |syncs| format!("{syncs:.0}")),
        );
    }
}

fn wait(what: &str, waits: Vec<f64>) {
    if !waits.is_empty() {
        println!("{what:<40}{:>11.0}{:>19}", median(waits.iter().copied()), span(&waits));
    }
}

fn span(values: &[f64]) -> String {
    let (least, most) = values
        .iter()
        .fold((f64::INFINITY, 0.0), |(least, most), value| (f64::min(least, *value), f64::max(most, *value)));
    format!("{least:.0}–{most:.0}")
}

/// None without our side: a promise that nothing was measured for is not printed.
fn targets(run: &Run<'_>) -> Vec<Target> {
    let life = run.races.iter().find(|(race, _)| race.work == Work::Life).map(|(_, figures)| figures);
    let life = life.map_or(&[][..], Vec::as_slice);
    let ours = |publisher| life.iter().find(move |side| side.who == Contender::Ours(publisher));
    let raw = |publisher| life.iter().find(move |side| side.who == Contender::Raw(Batch::AsOurs(publisher)));
    // One by one or in bulk, whichever is better: so it is with the rivals.
    let of_raw = PUBLISHERS.into_iter().filter_map(|it| Some(ours(it)?.of(raw(it)?)));
    let of_rivals = PUBLISHERS.into_iter().filter_map(|it| {
        let ours = ours(it)?;
        let rivals = life.iter().filter(|side| side.who.is_durable_rival());
        rivals.map(|rival| ours.of(rival)).min_by(f64::total_cmp)
    });
    let in_syncs = run.waits.iter().filter_map(|it| Some(it.event? / it.sync)).collect::<Vec<_>>();
    let in_syncs = (!in_syncs.is_empty()).then(|| median(in_syncs.into_iter()));
    [
        ("engine_of_raw", of_raw.max_by(f64::total_cmp), Goal::AtLeast(0.5), 2),
        ("engine_of_best_rival", of_rivals.max_by(f64::total_cmp), Goal::AtLeast(3.0), 1),
        ("idle_latency_in_syncs", in_syncs, Goal::AtMost(3.0), 1),
    ]
    .into_iter()
    .filter_map(|(name, value, goal, digits)| Some(Target { name, value: value?, goal, digits }))
    .collect()
}

fn as_json(run: &Run<'_>) -> Value {
    let Conditions { cpu, cores, rustc } = &run.conditions;
    let races = run.races.iter().map(|(race, figures)| {
        let sides = figures.iter().map(side_json).collect::<Vec<_>>();
        json!({ "race": race.title, "callers": race.callers, "contenders": sides })
    });
    json!({
        "cpu": cpu, "cores": cores, "rustc": rustc, "load": run.load, "file_system": run.file_system,
        "rounds": run.plan.rounds, "seconds": run.plan.time.as_secs_f64(),
        "races": races.collect::<Vec<_>>(),
        "sync_p50_us": run.waits.iter().map(|it| rounded(it.sync)).collect::<Vec<_>>(),
        "idle_p50_us": run.waits.iter().filter_map(|it| it.event).map(rounded).collect::<Vec<_>>(),
    })
}

fn side_json(side: &Figures) -> Value {
    json!({
        "contender": side.who.name(),
        "a_second": side.rates.iter().copied().map(rounded).collect::<Vec<_>>(),
        "batch": rounded(side.batch),
        "syncs_a_second": side.syncs.map(rounded),
        "settings": side.settings,
    })
}

/// To a tenth: further digits are noise.
fn rounded(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
