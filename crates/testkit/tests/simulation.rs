//! Seeds of the simulation: a few thousand in every test run, and any number with `cargo xtask sim`.
//!
//! Most are the same in every run. The others move with the commit, so that every commit checks new ones.

use std::io::Write;
use std::process::Command;

use redrive_testkit::simulation;

/// As many as half a minute allows without optimisation.
const SEEDS: u64 = 4000;
/// How many seeds move with the commit: some seven seconds of a core, with optimisation or without.
const MOVING_SEEDS: u64 = if cfg!(debug_assertions) { 2000 } else { 20_000 };
/// Where they begin if there is no commit, as in an archive.
const UNMOVED: u64 = 9_000_000;

fn hold(seeds: impl IntoIterator<Item = u64>) {
    for seed in seeds {
        if let Err(failure) = simulation::run(seed) {
            panic!("{failure}\nshrink it to its shortest trace with `cargo xtask sim --seed {seed}`");
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
fn seeds_that_move_with_the_commit_hold() {
    let (from, of) = match commit() {
        Some(hash) => (window(&hash), format!("commit {hash}")),
        None => (UNMOVED, "no commit, as git knows of none here".to_owned()),
    };
    let again = format!("cargo xtask sim --from {from} --seeds {MOVING_SEEDS}");
    // Not with `eprintln!`: tests that pass do not print that.
    let line = format!("simulation: seeds from {from}, by {of}; run them again with `{again}`\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
    hold(from..from + MOVING_SEEDS);
}

/// The commit that is checked out, if git knows it.
fn commit() -> Option<String> {
    let git =
        Command::new("git").args(["rev-parse", "HEAD"]).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    let hash = String::from_utf8(git.ok().filter(|git| git.status.success())?.stdout).ok()?;
    Some(hash.trim().to_owned()).filter(|hash| hash.len() >= 40)
}

/// The first seed of a commit's window. Windows of two commits practically never overlap.
fn window(hash: &str) -> u64 {
    u64::from_str_radix(&hash[..12], 16).unwrap_or(UNMOVED)
}

#[test]
fn windows_differ_by_commit() {
    let zeros = "0".repeat(40);
    assert_eq!(window(&zeros), 0);
    assert_eq!(window(&format!("00000001ffff{zeros}")), 0x0001_ffff);
}

#[test]
fn one_seed_is_one_run() {
    for seed in 0..50 {
        assert_eq!(simulation::try_run(seed), simulation::try_run(seed), "seed {seed}");
    }
}

#[cfg(feature = "planted")]
mod planted {
    use std::time::Duration;

    use super::simulation::{self, Choices, planted};
    use redrive_core::planted::{PlantedBug, plant};

    /// As many as it may take for well-hidden bugs.
    const SEEDS_MAX: u64 = 50_000;

    #[test]
    fn every_planted_bug_is_found() {
        let missed: Vec<PlantedBug> =
            PlantedBug::ALL.into_iter().filter(|flaw| !planted::SEARCHED_ONLY.contains(flaw)).collect();
        let missed: Vec<PlantedBug> =
            missed.into_iter().filter(|flaw| planted::find(*flaw, SEEDS_MAX).is_none()).collect();
        assert!(missed.is_empty(), "not found: {missed:?}");
    }

    #[test]
    fn seeds_that_found_bugs_hold_without_them() {
        super::hold(planted::KNOWN.into_iter().map(|(_, seed)| seed));
    }

    #[test]
    fn a_failing_seed_is_shrunk_and_fails_in_the_same_way() {
        for flaw in [PlantedBug::ParkLeaks, PlantedBug::UnknownSettleForgotten, PlantedBug::NextBeforeCommit]
        {
            let found = planted::find(flaw, SEEDS_MAX).expect("the bug is found");
            plant(Some(flaw));
            let shrunk = simulation::shrink(found.seed, Duration::from_secs(60));
            let shrunk = shrunk.expect("the seed fails");
            let (before, after) = (shrunk.before, shrunk.after);
            assert!(after.steps * 2 < before.steps, "{flaw:?}: {before} became {after}");
            assert_eq!(sentence(&shrunk.failure.what), sentence(&found.what), "{flaw:?}");

            // The choices kept in a file fail again; without the bug they hold.
            let kept: Choices = shrunk.choices.to_string().parse().expect("choices can be read");
            assert_eq!(kept, shrunk.choices);
            let again = simulation::replay(&kept).expect_err("it fails again");
            assert_eq!((&again.what, &again.steps), (&shrunk.failure.what, &shrunk.failure.steps));
            plant(None);
            if let Err(failure) = simulation::replay(&kept) {
                panic!("{flaw:?} is not the cause: {failure}");
            }
        }
    }

    /// Bugs that leave events behind, with a seed in which each does. The watchdog notices, and all events
    /// are done.
    #[test]
    fn the_watchdog_puts_right_what_a_bug_leaves_behind() {
        const STUCK: [PlantedBug; 5] = [
            PlantedBug::CrossingForgotten,
            PlantedBug::ArrivalsLostInLoad,
            PlantedBug::DueLostInLoad,
            PlantedBug::UnknownSettleForgotten,
            PlantedBug::LettersForgotten,
        ];
        for flaw in STUCK {
            let found = planted::find(flaw, SEEDS_MAX).expect("the bug is found");
            assert!(found.what.contains("no action is planned"), "{flaw:?}: {}", found.what);
            plant(Some(flaw));
            let healed = simulation::heal(found.seed);
            plant(None);
            let figures = healed.unwrap_or_else(|what| panic!("{flaw:?}, seed {}: {what}", found.seed));
            assert!(figures.stalls > 0, "{flaw:?}, seed {}", found.seed);
        }
    }

    /// Seeds that once left events for ever, missed poisonous events or forgot dispatch notes.
    #[test]
    fn seeds_that_failed_once_hold() {
        super::hold([188_035, 458_718, 466_368, 625_983, 857_534, 940_113, 1_010_763, 1_201_924, 1_295_398]);
        super::hold([1_708_950, 1_731_941, 1_892_689, 2_120_780, 5_015_984, 7_019_834, 117_994, 423_932]);
    }

    /// The part of a failure that stays the same: its sentence without numbers.
    fn sentence(what: &str) -> String {
        let sentence = what.split(": ").next().unwrap_or(what);
        sentence.split(|letter: char| letter.is_ascii_digit()).filter(|part| !part.is_empty()).collect()
    }
}
