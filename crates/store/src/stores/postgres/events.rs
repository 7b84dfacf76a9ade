//! Events and their dedupe records as rows, and the streams they belong to.
//!
//! | module | rows |
//! |---|---|
//! | [`fresh`] | events that may run and never ran |
//! | [`tracked`] | all other events |
//! | [`dedupe`] | identities, and how their events ended |

pub(super) mod fresh;

pub(super) mod tracked;

pub(super) mod dedupe;

pub(super) mod stream_names;
