//! Checks in memory: a window that is full, asked about ids it knows and ids it does not, and the bytes it takes.

use redrive_benches::measure::median;

use crate::contenders::{OURS, Order, PLAIN};
use crate::subprocess::Side;

/// Checks in one turn of one side: some 50 ms.
const CHECKS: usize = 50_000;
/// Ids that are put in at once while filling: the list of them is no memory worth mentioning.
const FILL: usize = 10_000;

/// What was measured of one side.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) name: &'static str,
    pub(crate) order: Order,
    /// Bytes of memory for an id.
    pub(crate) bytes: f64,
    /// Nanoseconds for an id while the window is filled.
    pub(crate) fill: f64,
    /// Nanoseconds for an id that is known.
    pub(crate) seen: f64,
    /// Nanoseconds for an id that is new, and for which the oldest is forgotten.
    pub(crate) new: f64,
}

/// Measures both sides in both orders.
pub(crate) fn measure(ids: usize, rounds: usize) -> Result<Vec<Figures>, String> {
    let mut all = Vec::new();
    for order in Order::ALL {
        eprintln!("bench: {ids} ids, {}", order.name());
        let mut sides = [OURS, PLAIN].map(|name| (name, Vec::new(), Vec::new()));
        let mut running = Vec::new();
        for (name, ..) in &sides {
            running.push(fill(Side::start(name, order, ids)?, order, ids)?);
        }
        for round in 0..rounds {
            for turn in 0..running.len() {
                let turn = (round + turn) % running.len();
                let (side, _) = &mut running[turn];
                sides[turn].1.push(side.ask(&format!("seen {CHECKS}"))? / float(CHECKS));
                sides[turn].2.push(side.ask(&format!("new {CHECKS}"))? / float(CHECKS));
            }
        }
        for ((_, figures), (_, seen, new)) in running.into_iter().zip(sides) {
            all.push(Figures { seen: median(seen.into_iter()), new: median(new.into_iter()), ..figures });
        }
    }
    Ok(all)
}

fn fill(mut side: Side, order: Order, ids: usize) -> Result<(Side, Figures), String> {
    let before = side.ask("bytes")?;
    let mut nanos = 0.0;
    for _ in 0..ids / FILL {
        nanos += side.ask(&format!("new {FILL}"))?;
    }
    let put = float(ids / FILL * FILL);
    let bytes = (side.ask("bytes")? - before) / put;
    let figures = Figures { name: side.name, order, bytes, fill: nanos / put, seen: 0.0, new: 0.0 };
    Ok((side, figures))
}

fn float(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}
