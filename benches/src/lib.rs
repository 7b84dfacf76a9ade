//! Redrive beside its rivals: the pieces that the measurements share.
//!
//! Rivals' crates are dependencies of this package alone. `benches/` holds what is measured, `tests/peers/`
//! what the rivals get wrong and Redrive does not.
//!
//! Why not an off-the-shelf harness: those measure one side after the other, seconds apart, and on a shared
//! machine the neighbour's work then lands on one side and not on the other. Here all sides take turns within
//! every round of a few milliseconds, so noise hits them alike, and the figure is the median over many
//! rounds.

pub mod measure;

pub mod poll;

pub mod target;

pub mod conditions;

pub mod turn;

pub mod contender_process;

pub mod program;

pub mod server_process;

pub mod syncs;
