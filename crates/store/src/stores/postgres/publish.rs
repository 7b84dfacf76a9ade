//! Publishing: a dedupe record and an event, in one commit.
//!
//! [`fast`] writes new events with one statement; [`slow`] takes the rest, in a transaction.

pub(super) mod fast;

pub(super) mod slow;
