//! Retrying over HTTP, on both sides of the wire: the layers, and with the feature `reqwest` the client.

pub use redrive_http::*;
