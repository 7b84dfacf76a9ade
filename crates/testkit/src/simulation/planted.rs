//! Checks that the simulation is not blind: bugs are planted one by one, and it has to find them.

use redrive_core::planted::{PlantedBug, plant};

/// Seeds that found bugs which take long to find. Some of these bugs were not planted at first: the scheduler
/// was written that way. When the simulation changes, its seeds mean something else; then new seeds have to
/// be searched for, which takes a while, and these replaced.
pub const KNOWN: [(PlantedBug, u64); 13] = [
    (PlantedBug::LookUpAfterFailedSync, 700),
    (PlantedBug::StrikesWithoutDeath, 226),
    (PlantedBug::LettersForgotten, 974),
    (PlantedBug::DrainEndsCare, 21_562),
    (PlantedBug::SettlesTwice, 1853),
    (PlantedBug::DueLostInLoad, 250),
    (PlantedBug::RecallMissesAnswers, 222_228),
    (PlantedBug::PutBackUnheard, 6070),
    (PlantedBug::NextBesideTakenAway, 5343),
    (PlantedBug::KeyRunsTwice, 5343),
    (PlantedBug::KeysGoNear, 8906),
    (PlantedBug::CrossingForgotten, 5_015_984),
    (PlantedBug::CareEndsEarly, 9307),
];

/// Bugs that no seed finds, because each message is delivered once there. The [search](crate::exhaustive)
/// finds them.
pub const SEARCHED_ONLY: [PlantedBug; 1] = [PlantedBug::AnswersUnmatched];

/// A seed that found a bug, and what did not hold.
#[derive(Debug, Clone)]
pub struct Found {
    /// The seed.
    pub seed: u64,
    /// How many seeds were run, including this one.
    pub seeds: u64,
    /// What did not hold.
    pub what: String,
}

/// Plants a bug in this thread and runs seeds until one fails: the known ones first, then up to `seeds_max`
/// others.
#[must_use]
pub fn find(flaw: PlantedBug, seeds_max: u64) -> Option<Found> {
    let known = KNOWN.into_iter().filter(|(of, _)| *of == flaw).map(|(_, seed)| seed);
    plant(Some(flaw));
    let found = known
        .chain(0..seeds_max)
        .zip(1..)
        .find_map(|(seed, seeds)| super::try_run(seed).err().map(|what| Found { seed, seeds, what }));
    plant(None);
    found
}
