//! Out-of-order commits in a partitioned log, as pure state machines.
//!
//! Kafka commits one offset for a partition. Attempts end in any order, so the committed offset is the *low mark*, the
//! first offset that is not done, and the *done-set* above it travels in the metadata of the commit ([`done_set`],
//! [`progress`]). Without it a message above the low mark that was moved to a retry topic would be moved twice after a
//! crash. All commits of a partition go through one [`committer`], one at a time.

pub mod committer;
pub mod done_set;
pub mod progress;

pub use committer::Committer;
pub use done_set::DoneSet;
pub use progress::Progress;
