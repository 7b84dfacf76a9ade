//! The report: tables for people, target lines and figures for tools.

use std::time::Duration;

use redrive_benches::conditions::Conditions;
use redrive_benches::target::{Goal, Target};
use redrive_benches::turn::Publisher;
use serde_json::{Value, json};

use crate::contender::Contender;
use crate::race::{Figures, Plan};
use crate::run::Measured;

/// A run that is over.
pub(crate) struct Run {
    pub(crate) conditions: Conditions,
    pub(crate) server: String,
    /// The machine's load before the start.
    pub(crate) load: Option<f64>,
    pub(crate) plan: Plan,
    pub(crate) took: Duration,
    pub(crate) measured: Measured,
}

pub(crate) fn report(run: &Run) {
    let Run { conditions, server, load, plan, took, measured } = run;
    let load = load.map_or_else(|| "-".to_owned(), |load| format!("{load:.1}"));
    println!("Durable events, 256 bytes each. {conditions}, load {load} before.");
    println!("{server}. One server for all, a database of its own for each turn.");
    println!(
        "{} rounds of {:.1} s for each contender, in turns, {:.0} s in all; medians.",
        plan.rounds,
        plan.time.as_secs_f64(),
        took.as_secs_f64()
    );
    println!("batch: writes in a transaction. A life cycle is two writes: its publish and its end.");
    table("Life cycles, 1,000 in flight", &measured.life);
    table("All that wait are done, from the start of the worker", &measured.drained);
    table("Life cycles with a transaction held open in the same database", &measured.held);
    table("Life cycles beside events that wait for a far retry", &measured.waiting);
    println!();
    for target in targets(measured) {
        println!("{target}");
    }
    println!("figures {}", as_json(run));
}

fn table(title: &str, figures: &[Figures]) {
    if figures.is_empty() {
        return;
    }
    println!("\n{title}\n");
    println!("{:<40}{:>11}{:>19}{:>9}  settings", "contender", "a second", "least–most", "batch");
    for side in figures {
        let Figures { name, rates, batch, settings, .. } = side;
        println!("{name:<40}{:>11.0}{:>19}{batch:>9.1}  {settings}", side.rate(), span(rates));
    }
}

fn span(values: &[f64]) -> String {
    let (least, most) = values
        .iter()
        .fold((f64::INFINITY, 0.0), |(least, most), value| (f64::min(least, *value), f64::max(most, *value)));
    format!("{least:.0}–{most:.0}")
}

/// A promise that nothing was measured for is not printed.
fn targets(measured: &Measured) -> Vec<Target> {
    let Measured { life, drained, held, waiting } = measured;
    let best = |ratios: Vec<f64>| ratios.into_iter().max_by(f64::total_cmp);
    let least = |ratios: Vec<f64>| ratios.into_iter().min_by(f64::total_cmp);
    // One by one with one by one, in bulk with in bulk.
    let against = |rival: &dyn Fn(Contender, Publisher) -> bool, publisher: Publisher| {
        let ours = life.iter().find(|side| side.who == Some(Contender::Ours(publisher, 1)))?;
        let rivals = life.iter().filter(|side| side.who.is_some_and(|who| rival(who, publisher)));
        least(rivals.map(|rival| ours.of(rival)).collect())
    };
    let is_raw = |who: Contender, publisher: Publisher| who == Contender::Raw(publisher, 1);
    let is_plain =
        |who: Contender, publisher: Publisher| matches!(who, Contender::Plain(by, _) if by == publisher);
    let is_rival = |who: Contender, _: Publisher| matches!(who, Contender::Rival(_));
    let both = [Publisher::Each, Publisher::Bulk];
    let of_raw = best(both.iter().filter_map(|by| against(&is_raw, *by)).collect());
    let three = life.iter().find(|side| side.who == Some(Contender::Ours(Publisher::Each, 3)));
    let raw = life.iter().find(|side| side.who == Some(Contender::Raw(Publisher::Each, 3)));
    let three_of_raw = three.zip(raw).map(|(three, raw)| three.of(raw));
    let of_rival = best(both.iter().filter_map(|by| against(&is_rival, *by)).collect());
    let drained_of_rival = match drained.as_slice() {
        [ours, rivals @ ..] => least(rivals.iter().map(|rival| ours.of(rival)).collect()),
        [] => None,
    };
    let held = match held.as_slice() {
        [without, with] => Some(with.of(without)),
        _ => None,
    };
    let beside = |at: usize| Some(waiting.get(at)?.of(waiting.first()?));
    [
        ("engine_of_raw", of_raw, Goal::AtLeast(0.5), 2),
        ("three_nodes_of_raw", three_of_raw, Goal::AtLeast(0.5), 2),
        ("engine_of_row_locks", against(&is_plain, Publisher::Each), Goal::AtLeast(2.0), 1),
        ("engine_of_row_locks_in_bulk", against(&is_plain, Publisher::Bulk), Goal::AtLeast(2.0), 1),
        ("engine_of_graphile_worker", of_rival, Goal::AtLeast(1.5), 1),
        ("drained_of_graphile_worker", drained_of_rival, Goal::AtLeast(1.5), 1),
        ("held_open_of_free", held, Goal::AtLeast(0.8), 2),
        ("beside_a_million_of_ten_thousand", beside(1), Goal::AtLeast(0.8), 2),
        ("beside_ten_million_of_ten_thousand", beside(2), Goal::AtLeast(0.8), 2),
    ]
    .into_iter()
    .filter_map(|(name, value, goal, digits)| Some(Target { name, value: value?, goal, digits }))
    .collect()
}

fn as_json(run: &Run) -> Value {
    let Conditions { cpu, cores, rustc } = &run.conditions;
    let sides = |figures: &[Figures]| figures.iter().map(side).collect::<Vec<_>>();
    let Measured { life, drained, held, waiting } = &run.measured;
    json!({
        "cpu": cpu, "cores": cores, "rustc": rustc, "load": run.load, "server": run.server,
        "rounds": run.plan.rounds, "seconds": run.plan.time.as_secs_f64(),
        "life": sides(life), "drained": sides(drained), "held": sides(held), "waiting": sides(waiting),
    })
}

fn side(side: &Figures) -> Value {
    let rounded = |value: f64| (value * 10.0).round() / 10.0;
    json!({
        "contender": side.name,
        "a_second": side.rates.iter().copied().map(rounded).collect::<Vec<_>>(),
        "batch": rounded(side.batch),
        "settings": side.settings,
    })
}
