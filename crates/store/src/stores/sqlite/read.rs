//! Reading: one event, a page of events, counts, and the oldest event that is due.

pub(super) mod find;

pub(super) mod list;

pub(super) mod count;

pub(super) mod oldest;
