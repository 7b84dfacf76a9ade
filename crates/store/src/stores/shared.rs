//! Code that the stores with rows share: events, dedupe records and ledger records as columns, their checksums, and
//! decisions that need no other row.
//!
//! The SQL is each store's own.

pub(in crate::stores) mod cells;

pub(in crate::stores) mod numbers;

pub(in crate::stores) mod params;

pub(in crate::stores) mod rows;

pub(in crate::stores) mod columns;

pub(in crate::stores) mod tracked;

pub(in crate::stores) mod history;

pub(in crate::stores) mod dedupe;

pub(in crate::stores) mod rules;

pub(in crate::stores) mod user_statements;

pub(in crate::stores) mod dead_letter_filter;

pub(in crate::stores) mod acts;

pub(in crate::stores) mod pages;

pub(in crate::stores) mod group;

pub(in crate::stores) mod failing;

pub(in crate::stores) mod jobs;

pub(in crate::stores) mod ledger;

pub(crate) mod moving;
