//! Classifiers ready to use. First that knows, decides: `mine.or(classify::io)`.
//!
//! The pure classifiers live in [`redrive_core::classify`] and are re-exported here. The others know the errors of
//! one crate each, behind the feature of that crate's name:
//!
//! | classifier | knows | feature |
//! |---|---|---|
//! | `io` | `std::io::Error` | |
//! | `sqlstate` | the SQLSTATE of a PostgreSQL or MySQL error | |
//! | `sqlite_code` | the result code of a SQLite error | |
//! | `sqlx` | `sqlx::Error`, whichever the database | `sqlx` |
//! | `sqlite` | `rusqlite::Error` | `rusqlite` |
//! | `grpc`, `grpc_code` | `tonic::Status` with its push-back, `tonic::Code` | `tonic` |
//! | `kafka`, `kafka_code` | `rdkafka`'s `KafkaError`, the codes of brokers and librdkafka | `rdkafka` |
//! | `all` | everything, as transient with an unknown effect | |
//! | `unknown` | nothing | |
//!
//! Each function documents its table. They claim "not executed" only if that is certain, and leave unknown errors to
//! the next classifier.

pub use redrive_core::classify::{
    Classification, Classify, ClassifyIf, OrElse, Output, all, io, sqlstate, unknown,
};

mod sqlite_code;

#[cfg(feature = "rdkafka")]
mod kafka;
#[cfg(feature = "rusqlite")]
mod sqlite;
#[cfg(feature = "sqlx")]
mod sqlx;
#[cfg(feature = "tonic")]
mod tonic;

pub use sqlite_code::sqlite_code;

#[cfg(feature = "rdkafka")]
pub use kafka::{kafka, kafka_code};
#[cfg(feature = "rusqlite")]
pub use sqlite::sqlite;
#[cfg(feature = "sqlx")]
pub use sqlx::sqlx;
#[cfg(feature = "tonic")]
pub use tonic::{grpc, grpc_code};
