//! What operators see and change, as rows. The commands themselves are in the [row engine](crate::stores::rows).

pub(super) mod rules;

pub(super) mod jobs;

pub(super) mod candidates;

pub(super) mod letters;

pub(super) mod groups;

pub(super) mod failing;

pub(super) mod tallies;

pub(super) mod audit;

pub(super) mod retention;
