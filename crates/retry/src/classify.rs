//! Classifiers ready to use. First that knows, decides: `mine.or(classify::io)`.
//!
//! What is pure lives in [`redrive_core::classify`] and is named here again. The others know the errors of one crate each,
//! behind the feature of that crate's name.

pub use redrive_core::classify::{Answer, Classify, Or, all, io, sqlstate, unknown};

#[cfg(feature = "rdkafka")]
mod kafka;
#[cfg(feature = "rusqlite")]
mod sqlite;
#[cfg(feature = "sqlx")]
mod sqlx;
#[cfg(feature = "tonic")]
mod tonic;

#[cfg(feature = "rdkafka")]
pub use kafka::{kafka, kafka_code};
#[cfg(feature = "rusqlite")]
pub use sqlite::sqlite;
#[cfg(feature = "sqlx")]
pub use sqlx::sqlx;
#[cfg(feature = "tonic")]
pub use tonic::{grpc, grpc_code};
