//! A simulation of the scheduler and a store: the production code, with everything else made of dice.
//!
//! One seed decides everything: how many processes there are, what is published, what handlers do, in which
//! order things happen, when processes die, which commits fail and how. Nothing waits and nothing is
//! concurrent; what would be concurrent is a list of things that may happen next, and the dice choose. So a
//! seed that fails fails again, in the same way, with every step in words.
//!
//! - `world` is the loop: it has the dice, the clock, the nodes and the store.
//! - `model` is what is true: it is told of every commit, and says what may follow.
//! - `plan` and `intent` are what a seed decides before the first step.
//!
//! After some steps nothing goes wrong any more, and everything has to come to an end: whoever waits for
//! something that nobody will ever tell him is found then.
//!
//! A simulation that finds nothing may be blind. [`planted`](redrive_core::planted) bugs are found by it one by
//! one, in a test.
//!
//! ```
//! let figures = redrive_testkit::simulation::run(7).unwrap_or_else(|failure| panic!("{failure}"));
//! assert!(figures.steps > 0);
//! ```

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a simulation that is wrong itself has to stop")]

use std::fmt;

mod chance;

mod plan;

mod intent;

mod model;

mod world;

mod trace;

mod words;

mod figures;

#[cfg(feature = "planted")]
pub mod planted;

pub use figures::Figures;

/// A seed that failed.
#[derive(Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// What does not hold.
    pub what: String,
    /// The last steps before, in words.
    pub steps: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            writeln!(f, "{step}")?;
        }
        write!(f, "seed {}: {}", self.seed, self.what)
    }
}

/// Runs a seed.
///
/// # Errors
/// With what does not hold, and how it came to that.
pub fn run(seed: u64) -> Result<Figures, Box<Failure>> {
    try_run(seed).map_err(|what| {
        // The same again, written down.
        let mut world = world::World::new(seed, true);
        let again = world.run().err();
        let what = again.unwrap_or_else(|| format!("{what}; but not when it was run again"));
        Box::new(Failure { seed, what, steps: world.trace.into_steps() })
    })
}

/// Runs a seed without writing its steps down.
///
/// # Errors
/// With what does not hold.
pub fn try_run(seed: u64) -> Result<Figures, String> {
    let mut world = world::World::new(seed, false);
    world.run()?;
    Ok(world.figures)
}
