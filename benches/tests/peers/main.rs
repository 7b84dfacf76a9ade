//! What the rivals get wrong, and that Redrive under the same settings does not.
//!
//! One file a rival. Each test shows the fault in the version that `Cargo.toml` pins, then the same case
//! through Redrive; when a rival mends its fault, its test fails and the row goes. Where the rival is not
//! written in Rust, its rule is written down as a model and called one.

#![allow(clippy::unwrap_used, reason = "a panic is a test's way to fail")]

mod redrive_helpers;

mod backon;

mod failsafe_go;

mod reqwest;

mod reqwest_retry;

mod seatbelt;

mod smithy;

mod tower;

mod growth;

mod asked_for;
