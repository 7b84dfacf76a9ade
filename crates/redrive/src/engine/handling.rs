//! What a handler is given and what it answers.

pub(in crate::engine) mod delivery;
pub(in crate::engine) mod handler;
pub(in crate::engine) mod lineage;
pub(in crate::engine) mod reply;
pub(in crate::engine) mod sqlstate;
pub(in crate::engine) mod transaction;
