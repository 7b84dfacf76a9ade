//! Seeds of the simulation: a few thousand in every test run, and any number with `cargo xtask sim`.

use redrive_testkit::simulation;

/// As many as half a minute allows without optimisation.
const SEEDS: u64 = 4000;

fn hold(seeds: impl IntoIterator<Item = u64>) {
    for seed in seeds {
        if let Err(failure) = simulation::run(seed) {
            panic!("{failure}");
        }
    }
}

#[test]
fn even_seeds_hold() {
    hold((0..SEEDS).step_by(2));
}

#[test]
fn odd_seeds_hold() {
    hold((1..SEEDS).step_by(2));
}

#[test]
fn one_seed_is_one_run() {
    for seed in 0..50 {
        assert_eq!(simulation::try_run(seed), simulation::try_run(seed), "seed {seed}");
    }
}

#[cfg(feature = "planted")]
mod planted {
    use super::simulation::planted;
    use redrive_core::planted::Flaw;

    /// As many as it may take for bugs that are well hidden.
    const SEEDS_MAX: u64 = 50_000;

    #[test]
    fn every_planted_bug_is_found() {
        let missed: Vec<Flaw> =
            Flaw::ALL.into_iter().filter(|flaw| planted::find(*flaw, SEEDS_MAX).is_none()).collect();
        assert!(missed.is_empty(), "not found: {missed:?}");
    }

    #[test]
    fn seeds_that_found_bugs_hold_without_them() {
        super::hold(planted::KNOWN.into_iter().map(|(_, seed)| seed));
    }
}
