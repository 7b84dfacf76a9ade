//! The starting point of a search.

use std::fmt;

#[cfg(feature = "planted")]
use redrive_core::planted::PlantedBug;

/// The starting point of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scenario {
    /// Whether the previous owner did not end cleanly.
    pub unclean: bool,
    /// Whether the events have the same key, and so run one after the other in one shard. Otherwise two are
    /// in one shard and one is in the other.
    pub keyed: bool,
    /// How many attempts run at once.
    pub concurrency: u32,
}

impl Scenario {
    /// All scenarios that are searched.
    pub const ALL: [Self; 4] = [
        Self { unclean: true, keyed: false, concurrency: 1 },
        Self { unclean: true, keyed: true, concurrency: 2 },
        Self { unclean: false, keyed: false, concurrency: 1 },
        Self { unclean: false, keyed: true, concurrency: 2 },
    ];
}

#[cfg(feature = "planted")]
const LONE: Scenario = Scenario { unclean: true, keyed: false, concurrency: 1 };
#[cfg(feature = "planted")]
const KEYED: Scenario = Scenario { unclean: true, keyed: true, concurrency: 2 };

/// Planted bugs that a search finds within seven steps, with the scenario in which it does: guards against an
/// order of messages.
#[cfg(feature = "planted")]
pub const SEARCHED: [(PlantedBug, Scenario); 11] = [
    (PlantedBug::AnswersUnmatched, KEYED),
    (PlantedBug::CareForgetsHeldBack, LONE),
    (PlantedBug::HeldBackFreesLate, KEYED),
    (PlantedBug::NotesLeftOut, LONE),
    (PlantedBug::RecallMissesLoads, KEYED),
    (PlantedBug::RecallMissesNotes, KEYED),
    (PlantedBug::ArrivalsLostInLoad, LONE),
    (PlantedBug::AnswersOfAnotherTime, KEYED),
    (PlantedBug::GivenWhileRunning, KEYED),
    (PlantedBug::GivingStartsNoted, KEYED),
    (PlantedBug::GivenAsClean, LONE),
];

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = if self.unclean { "after an unclean end" } else { "after a clean end" };
        let events = if self.keyed { "one key" } else { "no keys" };
        write!(f, "{owner}, {events}, {} at once", self.concurrency)
    }
}
