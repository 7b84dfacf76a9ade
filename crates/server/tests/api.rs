//! The API over real sockets. A file for each part of it is in `api/`; what they share is in `api/house.rs`.

#[path = "api/commands.rs"]
mod commands;
#[path = "api/house.rs"]
mod house;
#[path = "api/publish.rs"]
mod publish;
#[path = "api/push.rs"]
mod push;
#[path = "api/receiver.rs"]
mod receiver;
#[path = "api/reload.rs"]
mod reload;
#[path = "api/secrets.rs"]
mod secrets;
#[path = "api/tls.rs"]
mod tls;
