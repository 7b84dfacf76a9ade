//! Loading: the due events of a stream, for the owner of its shard.
//!
//! [`fast`] loads with one statement if no rule is active and no dead letter is about to unblock its key; [`slow`]
//! reads everything in one transaction otherwise.

pub(super) mod fast;

pub(super) mod slow;
