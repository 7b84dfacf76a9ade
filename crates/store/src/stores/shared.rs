//! What the stores that keep rows have in common: how events, receipts and records are columns, their checksums, and
//! what is decided from them without looking at anything else.
//!
//! The SQL is each store's own.

pub(in crate::stores) mod cells;

pub(in crate::stores) mod numbers;

pub(in crate::stores) mod rows;

pub(in crate::stores) mod columns;

pub(in crate::stores) mod held;

pub(in crate::stores) mod stories;

pub(in crate::stores) mod receipt;

pub(in crate::stores) mod rules;

pub(in crate::stores) mod letters;

pub(in crate::stores) mod acts;

pub(in crate::stores) mod pages;

pub(in crate::stores) mod group;

pub(in crate::stores) mod jobs;

pub(in crate::stores) mod record;

pub(crate) mod moving;
