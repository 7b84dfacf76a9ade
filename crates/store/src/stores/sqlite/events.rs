//! Events and their dedupe records as rows, and the streams they belong to.
//!
//! | module | rows |
//! |---|---|
//! | [`fresh`] | events that may run and never ran |
//! | [`tracked`], [`columns`] | all other events |
//! | [`dedupe`], [`endings`] | identities, and how their events ended |

pub(super) mod fresh;

pub(super) mod tracked;

pub(super) mod columns;

pub(super) mod dedupe;

pub(super) mod endings;

pub(super) mod stream_names;
