//! Publishing: a dedupe record and an event, in one commit.
//!
//! [`one`] publishes an event; [`batch`] publishes all events that wait for the same commit with fewer statements.

pub(super) mod one;

pub(super) mod batch;
