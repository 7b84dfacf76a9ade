//! The cost of a first-try success, in nanoseconds and allocations: bare, through each of Redrive's call styles, and
//! through its rivals.
//!
//! `cargo bench -p redrive-benches --bench retry`. Prints a table, then a line for each target, then all
//! figures as JSON.

mod allocations;

mod baseline;

mod redrive_calls;

mod rivals;

mod report;

use std::time::Instant;

use redrive_benches::conditions::Conditions;
use redrive_benches::measure::{Plan, measure};

/// Rounds enough that a neighbour's burst of work is a few outliers; turns short enough (some 0.2 ms) to be
/// rarely interrupted.
const PLAN: Plan = Plan { rounds: 400, calls: 5_000 };

fn main() {
    // `cargo bench` says `--bench`. `cargo test --all-targets` calls the binary too and says nothing: nothing
    // is to be measured.
    if !std::env::args().any(|arg| arg == "--bench") || std::env::args().any(|arg| arg == "--list") {
        return;
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_time().build() {
        Ok(runtime) => runtime,
        Err(error) => panic!("no runtime: {error}"),
    };
    // Every side could make a timer, as it could in production.
    let _context = runtime.enter();
    let started = Instant::now();
    let sides = [baseline::sides(), redrive_calls::sides(), rivals::sides()].into_iter().flatten().collect();
    let figures = measure(PLAN, allocations::COUNTED, sides);
    report::report(&Conditions::here(), PLAN, started.elapsed(), &figures);
}
