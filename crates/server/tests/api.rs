//! The API over real sockets. A file for each part of it is in `api/`; what they share is in `api/server.rs`.

#[path = "api/backup.rs"]
mod backup;
#[path = "api/campaign.rs"]
mod campaign;
#[path = "api/cloudevents.rs"]
mod cloudevents;
#[path = "api/commands.rs"]
mod commands;
#[path = "api/dashboards.rs"]
mod dashboards;
#[path = "api/dead_letters.rs"]
mod dead_letters;
#[path = "api/held_connections.rs"]
mod held_connections;
#[path = "api/ledger.rs"]
mod ledger;
#[path = "api/listener_tls.rs"]
mod listener_tls;
#[path = "api/long_poll.rs"]
mod long_poll;
#[path = "api/malformed.rs"]
mod malformed;
#[path = "api/notify.rs"]
mod notify;
#[path = "api/observe.rs"]
mod observe;
#[path = "api/openapi.rs"]
mod openapi;
#[path = "api/operate.rs"]
mod operate;
#[path = "api/operate_flow.rs"]
mod operate_flow;
#[path = "api/operate_tenants.rs"]
mod operate_tenants;
#[path = "api/overload.rs"]
mod overload;
#[path = "api/publish.rs"]
mod publish;
#[path = "api/pull.rs"]
mod pull;
#[path = "api/push.rs"]
mod push;
#[path = "api/python.rs"]
mod python;
#[path = "api/receiver.rs"]
mod receiver;
#[path = "api/reload.rs"]
mod reload;
#[path = "api/requests.rs"]
mod requests;
#[path = "api/revocation.rs"]
mod revocation;
#[path = "api/rights.rs"]
mod rights;
#[path = "api/secrets.rs"]
mod secrets;
#[path = "api/shared.rs"]
mod shared;
#[path = "api/test_server.rs"]
mod test_server;
#[path = "api/tls.rs"]
mod tls;
