//! Checks that the simulation is not blind: it has to find every planted bug.

use std::process::ExitCode;

use redrive_core::planted::PlantedBug;
use redrive_testkit::simulation::planted;

/// Plants every bug, and runs up to `seeds_max` seeds to find it.
pub(crate) fn find(seeds_max: u64) -> ExitCode {
    let mut missed = 0;
    let flaws: Vec<PlantedBug> =
        PlantedBug::ALL.into_iter().filter(|flaw| !planted::SEARCHED_ONLY.contains(flaw)).collect();
    for flaw in flaws.iter().copied() {
        let name = format!("{flaw:?}");
        match planted::find(flaw, seeds_max) {
            Some(planted::Found { seed, seeds, what }) => {
                let what: String = what.chars().take(80).collect();
                println!("{name:<24} found by {seeds:>6} seeds, the last is {seed:>6}: {what}");
            }
            None => {
                missed += 1;
                println!("{name:<24} NOT FOUND by {seeds_max} seeds");
            }
        }
    }
    println!("\n{} of {} found", flaws.len() - missed, flaws.len());
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
