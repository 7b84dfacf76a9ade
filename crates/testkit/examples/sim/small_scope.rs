//! Every order of messages in a small scope.

use std::process::ExitCode;
use std::time::Instant;

use redrive_testkit::exhaustive::{Limits, SEARCHED, Scenario, search};

/// The most states of a scenario: as many as fit into some gigabytes.
const STATES_MAX: usize = 20_000_000;
/// How deep the search for each guard goes.
const GUARD_DEPTH: usize = 7;

/// Searches all scenarios to a depth, then once without each guard.
pub(crate) fn run(depth: usize) -> ExitCode {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut failed = false;
    for scenario in Scenario::ALL {
        let began = Instant::now();
        match search(scenario, Limits { depth, states: STATES_MAX }, threads) {
            Ok(explored) => println!(
                "{scenario}: {} states, {} steps, all orders of {} steps, {:.1} s",
                explored.states,
                explored.steps,
                explored.depth,
                began.elapsed().as_secs_f64()
            ),
            Err(stuck) => {
                failed = true;
                println!("{stuck}");
            }
        }
    }
    for (flaw, scenario) in SEARCHED {
        redrive_core::planted::plant(Some(flaw));
        let found = search(scenario, Limits { depth: GUARD_DEPTH, states: STATES_MAX }, threads);
        redrive_core::planted::plant(None);
        match found {
            Ok(_) => {
                failed = true;
                println!("without {flaw:?}: NOT FOUND");
            }
            Err(stuck) => println!("{flaw:?} is found after {} steps: {}", stuck.path.len(), stuck.what),
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
