//! Classifiers: from an error to a disposition. The first classifier that knows the error decides.
//!
//! ```
//! use redrive::classify::{self, Classify};
//! use redrive::Fault;
//! use std::io;
//!
//! let mine = |error: &io::Error| match error.kind() {
//!     io::ErrorKind::AddrInUse => Some(Fault::transient().not_executed()),
//!     _ => None,
//! };
//! let classifier = mine.or(classify::io);
//! # let _ = classifier.classify(&io::ErrorKind::AddrInUse.into());
//! ```

#[cfg(feature = "reqwest")]
pub use redrive_http::classify::reqwest;
#[cfg(feature = "http")]
pub use redrive_http::classify::status;
pub use redrive_retry::classify::*;
