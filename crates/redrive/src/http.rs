//! Retrying over HTTP, on both sides of the wire. See [`Client`](redrive_http) and the layers.

pub use redrive_http::*;
