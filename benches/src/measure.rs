//! Sides that take turns, many short rounds, the median of them.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// One way of making the same call.
pub struct Side<'a> {
    name: &'static str,
    bare: &'static str,
    batch: Box<dyn FnMut(u32) + 'a>,
}

impl<'a> Side<'a> {
    /// A side whose cost is what it takes beyond the side named `bare`.
    ///
    /// The loop is made here, around the concrete closure, so that the only dynamic call is the one for a
    /// whole batch.
    pub fn new<R>(name: &'static str, bare: &'static str, mut call: impl FnMut() -> R + 'a) -> Self {
        let batch = move |calls| {
            for _ in 0..calls {
                black_box(call());
            }
        };
        Self { name, bare, batch: Box::new(batch) }
    }
}

impl std::fmt::Debug for Side<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Side").field("name", &self.name).finish_non_exhaustive()
    }
}

/// How allocations are counted, in a binary whose allocator can.
#[derive(Debug, Clone, Copy)]
pub struct Allocations {
    /// How many this thread makes in there.
    pub during: fn(&mut dyn FnMut()) -> u64,
    /// Runs without counting.
    pub uncounted: fn(&mut dyn FnMut()),
}

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// How often all sides take their turn.
    pub rounds: u32,
    /// Calls in one turn of one side.
    pub calls: u32,
}

/// What was measured of one side, in nanoseconds a call.
#[derive(Debug, Clone)]
pub struct Figures {
    /// The side.
    pub name: &'static str,
    /// The side that it is compared with.
    pub bare: &'static str,
    /// The middle of all rounds.
    pub median: f64,
    /// The best round: the cost without disturbance.
    pub least: f64,
    /// A tenth of the rounds was faster than this. What is compared: the median moves when a neighbour works
    /// through half of the run, and the best round may be luck.
    pub p10: f64,
    /// A tenth of the rounds was slower than this.
    pub p90: f64,
    /// Allocations a call.
    pub allocations: f64,
}

/// Measures all sides in turns.
#[must_use]
pub fn measure(plan: Plan, counted: Allocations, mut sides: Vec<Side<'_>>) -> Vec<Figures> {
    let mut nanos = vec![Vec::with_capacity(plan.rounds as usize); sides.len()];
    let allocations: Vec<f64> = sides.iter_mut().map(|side| count(plan, counted, side)).collect();
    for round in 0..plan.rounds as usize {
        for turn in 0..sides.len() {
            // Another side starts every round, so that none always follows the same neighbour.
            let turn = (round + turn) % sides.len();
            nanos[turn].push(time(plan, counted, &mut sides[turn]));
        }
    }
    sides
        .iter()
        .zip(nanos)
        .zip(allocations)
        .map(|((side, nanos), allocations)| figures(side, nanos, allocations))
        .collect()
}

/// Warms a side up and counts what it allocates once it is warm.
fn count(plan: Plan, counted: Allocations, side: &mut Side<'_>) -> f64 {
    (side.batch)(plan.calls);
    let made = (counted.during)(&mut || (side.batch)(plan.calls));
    f64::from(u32::try_from(made).unwrap_or(u32::MAX)) / f64::from(plan.calls)
}

fn time(plan: Plan, counted: Allocations, side: &mut Side<'_>) -> f64 {
    let mut took = Duration::ZERO;
    (counted.uncounted)(&mut || {
        let start = Instant::now();
        (side.batch)(plan.calls);
        took = start.elapsed();
    });
    took.as_secs_f64() * 1e9 / f64::from(plan.calls)
}

fn figures(side: &Side<'_>, mut nanos: Vec<f64>, allocations: f64) -> Figures {
    nanos.sort_by(f64::total_cmp);
    let at = |tenths: usize| nanos[(nanos.len() - 1) * tenths / 10];
    Figures {
        name: side.name,
        bare: side.bare,
        median: at(5),
        least: at(0),
        p10: at(1),
        p90: at(9),
        allocations,
    }
}

/// The figures of the side with this name.
///
/// # Panics
/// If there is none: the bench then asks for something that it did not measure.
#[must_use]
pub fn find<'a>(figures: &'a [Figures], name: &str) -> &'a Figures {
    match figures.iter().find(|figures| figures.name == name) {
        Some(found) => found,
        None => panic!("no side is called {name}"),
    }
}

/// What a side takes beyond its bare call.
#[must_use]
pub fn over_bare(figures: &[Figures], name: &str) -> f64 {
    let side = find(figures, name);
    side.p10 - find(figures, side.bare).p10
}

/// The one in the middle, or the mean of the two there; not a number if there is none.
#[must_use]
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        even if even % 2 == 0 => f64::midpoint(values[middle - 1], values[middle]),
        _ => values[middle],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        for (values, expected) in [(&[3.0, 1.0, 9.0][..], 3.0), (&[4.0, 1.0, 2.0, 9.0], 3.0), (&[7.0], 7.0)] {
            assert_eq!(median(values.iter().copied()), expected, "{values:?}");
        }
        assert!(median([].into_iter()).is_nan());
    }
}
