//! The contract of the idempotent layer, row by row, over real sockets. `docs/guides/idempotency.md` has the table.
#![cfg(all(feature = "api", feature = "sqlite"))]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[cfg(feature = "reqwest")]
mod client;
mod commits;
mod gone;
#[cfg(feature = "seal")]
mod keeping;
mod kept;
mod keys;
mod leases;
mod ledger;
mod memory;
mod mistakes;
mod observed;
mod processes;
mod replays;
mod runs;
mod shop;
mod spy;
mod unknown;
mod waits;
mod wire;
mod wrapped;
