//! The `redrive` program as a library: the engine behind HTTP, the operators' command line, and the demo.
//!
//! It contains no engine logic. The [`redrive`] crate decides what an event is, when it is attempted and how it ends;
//! this crate adds the API, the configuration and the limits:
//!
//! - [`config`]: the settings, from `redrive.toml`, the environment and flags;
//! - [`app`]: the state shared by all requests, and the part that a reload replaces;
//! - [`queues`]: the queues of the configuration, set up in the engine;
//! - [`push`]: attempts of queues with a destination;
//! - [`secrets`]: what signs them;
//! - [`reload`]: another configuration, without a restart;
//! - [`api`]: the HTTP API;
//! - [`listen`]: the listener, which bounds what clients may cost;
//! - [`observe`]: metrics, logs, traces;
//! - [`notify`]: a message when dead letters have a new cause;
//! - [`serve`]: the life of a server, from its start to its stop;
//! - [`gateway`]: the idempotency ledger in front of any HTTP API;
//! - [`cli`]: the commands;
//! - `desk`: the operators' web pages.

pub mod config;

pub mod audit;
pub mod auth;

pub mod app;

pub mod queues;

pub mod push;

pub mod secrets;

pub mod reply_sealing;

pub mod reload;

pub mod api;

pub mod listen;

pub mod observe;

pub mod notify;

pub mod serve;

pub mod gateway;

pub mod cli;

mod desk;

mod demo;
