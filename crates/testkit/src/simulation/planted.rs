//! Whether the simulation is blind: bugs are planted one by one, and it has to find them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use redrive_core::planted::{Flaw, plant};

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

/// Plants a bug in this thread and runs these seeds until one fails.
#[must_use]
pub fn find(flaw: Flaw, seeds: impl IntoIterator<Item = u64>) -> Option<Found> {
    plant(Some(flaw));
    let found = seeds.into_iter().zip(1..).find_map(|(seed, seeds)| {
        // A bug may break what the code relies on: then it is found by a panic.
        let run = catch_unwind(AssertUnwindSafe(|| super::try_run(seed)));
        let failed = run.unwrap_or_else(|_| Err("a panic".to_owned())).err();
        failed.map(|what| Found { seed, seeds, what })
    });
    plant(None);
    found
}
