//! A simulation of the scheduler and a store: the production code, with everything around it decided by a
//! seed.
//!
//! One seed decides everything: how many processes there are, what is published, what handlers do, in which
//! order things happen, when processes die, which commits fail and how. Nothing waits and nothing is
//! concurrent; what would be concurrent is a list of things that may happen next, and the random source
//! chooses. A seed that fails therefore fails again, in the same way, with every step in words.
//!
//! - `world` is the loop: it has the random source, the clock, the nodes and the store.
//! - `model` is the truth: it records every commit, and decides what may follow.
//! - `plan` and `intent` are what a seed decides before the first step.
//!
//! After some steps the faults stop, and everything has to come to an end: a node or publisher that waits for
//! a message that never comes is found then.
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

mod choices;

mod tape;

mod plan;

mod intent;

mod model;

mod world;

mod trace;

mod words;

mod plain;

mod figures;

mod order;

mod panics;

mod shrink;

#[cfg(feature = "planted")]
pub mod planted;

pub use choices::{Choices, ChoicesError};
pub use figures::RunStats;
pub use order::MessageOrder;
pub use panics::quiet_panics;
pub use shrink::{Shrunk, Size, shrink};

use chance::Source;
use model::Check;
use tape::Tape;
use trace::Trace;
use world::World;

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

/// Runs a seed. A panic is a failure like any other.
///
/// # Errors
/// What does not hold, and the last steps before.
pub fn run(seed: u64) -> Result<RunStats, Box<Failure>> {
    try_run(seed).map_err(|what| {
        // The same again, recorded.
        let ran = perform(&Source::random(seed), Trace::last());
        let what = ran.result.err().unwrap_or_else(|| format!("{what}; but not when it was run again"));
        Box::new(Failure { seed, what, steps: ran.steps })
    })
}

/// Runs a seed without recording its steps.
///
/// # Errors
/// What does not hold.
pub fn try_run(seed: u64) -> Result<RunStats, String> {
    let ran = perform(&Source::random(seed), Trace::none());
    ran.result.map(|()| ran.figures)
}

/// Runs a seed in which the watchdog repairs stalled shards, as it does in production. With a planted bug
/// that leaves events behind, [`RunStats::stalls`] counts how often it did.
///
/// # Errors
/// What does not hold.
pub fn heal(seed: u64) -> Result<RunStats, String> {
    let mut world = World::new(&Source::random(seed), Trace::none());
    world.heals = true;
    world.run().map_err(|what| plain::plain(&what, &world.model))?;
    Ok(world.figures)
}

/// Runs a seed and records every step, also if all checks hold.
///
/// # Errors
/// What does not hold, and every step before.
pub fn trace(seed: u64) -> Result<(RunStats, Vec<String>), Box<Failure>> {
    told(seed, perform(&Source::random(seed), Trace::whole()))
}

/// Runs recorded choices, and records every step.
///
/// # Errors
/// What does not hold, and every step before.
pub fn replay(choices: &Choices) -> Result<(RunStats, Vec<String>), Box<Failure>> {
    let source = Source { seed: choices.seed, tape: Some(Tape::play(choices)) };
    told(choices.seed, perform(&source, Trace::whole()))
}

fn told(seed: u64, ran: Ran) -> Result<(RunStats, Vec<String>), Box<Failure>> {
    match ran.result {
        Ok(()) => Ok((ran.figures, ran.steps)),
        Err(what) => Err(Box::new(Failure { seed, what, steps: ran.steps })),
    }
}

/// The result of a run.
#[derive(Debug)]
struct Ran {
    result: Check,
    figures: RunStats,
    size: Size,
    steps: Vec<String>,
}

fn perform(source: &Source, trace: Trace) -> Ran {
    let mut world = match panics::catch(|| World::new(source, trace)) {
        Ok(world) => world,
        Err(panic) => {
            let (figures, size) = (RunStats::default(), Size::default());
            return Ran { result: Err(panic), figures, size, steps: Vec::new() };
        }
    };
    let result = panics::catch(|| world.run()).unwrap_or_else(Err);
    let result = result.map_err(|what| plain::plain(&what, &world.model));
    let size = world.size();
    Ran { result, size, figures: world.figures, steps: world.trace.into_steps() }
}
