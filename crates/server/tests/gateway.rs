//! The gateway, over real sockets: what it passes on, what it refuses, and what the ledger answers for.

#[path = "gateway/stand.rs"]
mod stand;

#[path = "gateway/passing.rs"]
mod passing;

#[path = "gateway/framing.rs"]
mod framing;

#[path = "gateway/tunnels.rs"]
mod tunnels;

#[path = "gateway/failing.rs"]
mod failing;

#[path = "gateway/asking.rs"]
mod asking;

#[path = "gateway/contract.rs"]
mod contract;

#[path = "gateway/holding.rs"]
mod holding;

#[path = "gateway/passing_time.rs"]
mod passing_time;

#[path = "gateway/ledger_down.rs"]
mod ledger_down;

#[path = "gateway/lookup.rs"]
mod lookup;

#[path = "gateway/identity.rs"]
mod identity;

#[path = "gateway/process.rs"]
mod process;

#[path = "gateway/programs.rs"]
mod programs;

#[path = "gateway/tls.rs"]
mod tls;
