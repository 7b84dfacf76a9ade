//! Whether the simulation is blind: bugs are planted one by one, and it has to find them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use redrive_core::planted::{Flaw, plant};

/// Seeds that found bugs which take long to find. Some of these bugs were not planted at first: they are how the
/// scheduler was written. When the simulation changes, its seeds mean something else; then others are looked for,
/// which takes a while, and these want to be replaced.
pub const KNOWN: [(Flaw, u64); 12] = [
    (Flaw::LookUpAfterFailedSync, 700),
    (Flaw::StrikesWithoutDeath, 226),
    (Flaw::LettersForgotten, 974),
    (Flaw::DrainEndsCare, 21_562),
    (Flaw::SettlesTwice, 1853),
    (Flaw::DueLostInLoad, 250),
    (Flaw::RecallMissesAnswers, 222_228),
    (Flaw::PutBackUnheard, 6070),
    (Flaw::FlowsForgottenEarly, 243_872),
    (Flaw::NextBesideTakenAway, 5343),
    (Flaw::KeyRunsTwice, 5343),
    (Flaw::KeysGoNear, 8906),
];

/// A seed that found a bug, and what did not hold.
#[derive(Debug, Clone)]
pub struct Found {
    /// The seed.
    pub seed: u64,
    /// How many were run, this one included.
    pub seeds: u64,
    /// What did not hold.
    pub what: String,
}

/// Plants a bug in this thread and runs seeds until one fails: those that are known to find it, then so many others.
#[must_use]
pub fn find(flaw: Flaw, seeds_max: u64) -> Option<Found> {
    let known = KNOWN.into_iter().filter(|(of, _)| *of == flaw).map(|(_, seed)| seed);
    plant(Some(flaw));
    let found = known.chain(0..seeds_max).zip(1..).find_map(|(seed, seeds)| {
        // A bug may break what the code relies on: then it is found by a panic.
        let run = catch_unwind(AssertUnwindSafe(|| super::try_run(seed)));
        let failed = run.unwrap_or_else(|_| Err("a panic".to_owned())).err();
        failed.map(|what| Found { seed, seeds, what })
    });
    plant(None);
    found
}
