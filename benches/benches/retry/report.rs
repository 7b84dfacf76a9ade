//! The report: a table for people, target lines and figures for tools.

use std::time::Duration;

use redrive_benches::conditions::Conditions;
use redrive_benches::measure::{Figures, Plan, find, over_bare};
use redrive_benches::target::{Goal, Target};
use serde_json::{Value, json};

use crate::redrive_calls;
use crate::rivals::BACKON;

pub(crate) fn report(conditions: &Conditions, plan: Plan, took: Duration, figures: &[Figures]) {
    let Plan { rounds, calls } = plan;
    println!("A first-try success, nanoseconds a call. {conditions}.");
    println!(
        "{rounds} rounds of {calls} calls, all sides in turns, {:.1} s in all; compared by p10.\n",
        took.as_secs_f64()
    );
    table(figures);
    println!();
    for target in targets(figures) {
        println!("{target}");
    }
    println!("figures {}", as_json(conditions, plan, figures));
}

fn table(figures: &[Figures]) {
    println!(
        "{:<36}{:>8}{:>8}{:>14}{:>11}{:>8}{:>10}{:>13}",
        "side", "median", "least", "p10–p90", "over bare", "× bare", "× backon", "allocations"
    );
    let backon = find(figures, BACKON).p10;
    for side in figures {
        let Figures { name, bare, median, least, p10, p90, allocations } = side;
        println!(
            "{name:<36}{median:>8.1}{least:>8.1}{:>14}{:>11.1}{:>8.1}{:>10.2}{allocations:>13}",
            format!("{p10:.1}–{p90:.1}"),
            over_bare(figures, name),
            p10 / find(figures, bare).p10,
            p10 / backon,
        );
    }
}

fn targets(figures: &[Figures]) -> Vec<Target> {
    let over = |name, side, most| {
        let goal = Goal::AtMost(most);
        Target { name, value: over_bare(figures, side), goal, digits: 1 }
    };
    let allocations = redrive_calls::ALL.iter().map(|side| find(figures, side).allocations).sum();
    let vs_backon = find(figures, redrive_calls::POSTFIX).p10 / find(figures, BACKON).p10;
    vec![
        over("retry.postfix.over_bare_ns", redrive_calls::POSTFIX, 20.0),
        over("retry.session.over_bare_ns", redrive_calls::SESSION, 20.0),
        over("retry.tower.over_bare_ns", redrive_calls::TOWER, 20.0),
        over("retry.postfix.budget_breaker.over_bare_ns", redrive_calls::POSTFIX_FULL, 35.0),
        over("retry.session.budget_breaker.over_bare_ns", redrive_calls::SESSION_FULL, 35.0),
        over("retry.tower.budget_breaker.over_bare_ns", redrive_calls::TOWER_FULL, 35.0),
        Target { name: "retry.allocations", value: allocations, goal: Goal::AtMost(0.0), digits: 0 },
        Target { name: "retry.postfix.vs_backon", value: vs_backon, goal: Goal::AtMost(1.0), digits: 2 },
    ]
}

fn as_json(conditions: &Conditions, plan: Plan, figures: &[Figures]) -> Value {
    let Conditions { cpu, cores, rustc } = conditions;
    let sides: Vec<Value> = figures
        .iter()
        .map(|side| {
            json!({
                "side": side.name,
                "median_ns": rounded(side.median),
                "least_ns": rounded(side.least),
                "p10_ns": rounded(side.p10),
                "p90_ns": rounded(side.p90),
                "over_bare_ns": rounded(over_bare(figures, side.name)),
                "allocations": side.allocations,
            })
        })
        .collect();
    json!({
        "cpu": cpu, "cores": cores, "rustc": rustc,
        "rounds": plan.rounds, "calls": plan.calls, "sides": sides,
    })
}

/// To a hundredth of a nanosecond: further digits are noise.
fn rounded(nanos: f64) -> f64 {
    (nanos * 100.0).round() / 100.0
}
