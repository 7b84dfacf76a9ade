//! The rungs that make repetition safe, as pure decisions.
//!
//! From cheap to dear: make the effect idempotent by itself (algebra, no code here), compare and set ([`cas`]), number
//! what a producer sends ([`sequence`]), remember identities ([`window`](crate::window), dedupe records), or commit
//! marker and effect together (a store's transaction). `docs/guides/ladder.md` says which rung fits which effect.
//!
//! Nothing here reads or writes: the shells are in `redrive-retry`, `redrive-store` and `redrive`.

pub mod cas;

pub mod fence;

pub mod sequence;

pub mod transaction;
