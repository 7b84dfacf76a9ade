//! The API over real sockets. A file for each part of it is in `api/`; what they share is in `api/house.rs`.

#[path = "api/house.rs"]
mod house;
#[path = "api/publish.rs"]
mod publish;
