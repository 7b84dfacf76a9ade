//! Our side: Redrive's embedded engine.
//!
//! Not here yet; the race is run without it. What it has to give is [`measure`], for each kind of work:
//!
//! - [`Work::Life`](redrive_benches::turn::Work::Life): `turn.callers` tasks, each of which publishes one
//!   event and publishes the next when the handler of that one has run; the handler does nothing else. `done`
//!   counts events whose end is committed. `writes` and `transactions` are the engine's own counts of what it
//!   put into how many commits, from which the raw line learns its batch.
//! - `Publish`: the same callers with nobody who handles; `done` counts publishes that were answered.
//! - `Idle`: one caller, one event at a time, and a pause of
//!   [`IDLE_PAUSE`](redrive_benches::turn::IDLE_PAUSE) in between; `p50_us` is from before the publish to the
//!   handler's first line.

use redrive_benches::turn::{Outcome, Turn};

/// As it is called on the command line.
pub(crate) const NAME: &str = "ours";

/// Whether there is something to measure.
pub(crate) const HERE: bool = false;

/// Measures one turn.
pub(crate) fn measure(_turn: &Turn) -> Result<Outcome, String> {
    Err("the engine is not here yet".to_owned())
}
