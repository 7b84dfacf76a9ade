//! The gateway, over real sockets: what it passes on, what it refuses, and what the ledger answers for.

#[path = "gateway/test_gateway.rs"]
mod test_gateway;

#[path = "gateway/pass_through.rs"]
mod pass_through;

#[path = "gateway/framing.rs"]
mod framing;

#[path = "gateway/tunnels.rs"]
mod tunnels;

#[path = "gateway/upstream_errors.rs"]
mod upstream_errors;

#[path = "gateway/keyed_requests.rs"]
mod keyed_requests;

#[path = "gateway/contract.rs"]
mod contract;

#[path = "gateway/sdk_answers.rs"]
mod sdk_answers;

#[path = "gateway/limits.rs"]
mod limits;

#[path = "gateway/contract_over_time.rs"]
mod contract_over_time;

#[path = "gateway/ledger_down.rs"]
mod ledger_down;

#[path = "gateway/lookup.rs"]
mod lookup;

#[path = "gateway/identity.rs"]
mod identity;

#[path = "gateway/key_burning.rs"]
mod key_burning;

#[path = "gateway/unknown_bounds.rs"]
mod unknown_bounds;

#[path = "gateway/process.rs"]
mod process;

#[path = "gateway/programs.rs"]
mod programs;

#[path = "gateway/tls.rs"]
mod tls;
