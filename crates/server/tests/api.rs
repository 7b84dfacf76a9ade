//! The API over real sockets. A file for each part of it is in `api/`; what they share is in `api/house.rs`.

#[path = "api/backup.rs"]
mod backup;
#[path = "api/cloudevents.rs"]
mod cloudevents;
#[path = "api/commands.rs"]
mod commands;
#[path = "api/house.rs"]
mod house;
#[path = "api/ledger.rs"]
mod ledger;
#[path = "api/letters.rs"]
mod letters;
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
#[path = "api/ops.rs"]
mod ops;
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
#[path = "api/secrets.rs"]
mod secrets;
#[path = "api/shared.rs"]
mod shared;
#[path = "api/tls.rs"]
mod tls;
#[path = "api/waiting.rs"]
mod waiting;
