//! The `redrive` program as a library: the engine behind HTTP, the operators' command line, and the demo.
//!
//! It has no rules of its own. What an event is, when it is attempted and what becomes of it is decided by the
//! [`redrive`] crate; here are addresses, words and limits:
//!
//! - [`config`]: what can be set, from `redrive.toml`, the environment and flags;
//! - [`app`]: what all requests share, and what a reload swaps;
//! - [`queues`]: the queues of the configuration, set up in the engine;
//! - [`push`]: attempts of queues with a destination;
//! - [`secrets`]: what signs them;
//! - [`reload`]: another configuration, without a restart;
//! - [`api`]: the HTTP API;
//! - [`listen`]: the listener, which bounds what clients may cost;
//! - [`observe`]: metrics, logs, traces;
//! - [`notify`]: a message to people when letters die of something new;
//! - [`serve`]: the life of a server, from its start to its stop;
//! - [`gateway`]: the idempotency ledger in front of any HTTP API;
//! - [`cli`]: the commands.

pub mod config;

pub mod audit;
pub mod auth;

pub mod app;

pub mod queues;

pub mod push;

pub mod secrets;

pub mod ledger;

pub mod reload;

pub mod api;

pub mod listen;

pub mod observe;

pub mod notify;

pub mod serve;

pub mod gateway;

mod rates;

mod waiting;

pub mod cli;

mod demo;
