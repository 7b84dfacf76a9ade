//! Classifiers ready to use. First that knows, decides: `mine.or(classify::io)`.
//!
//! What is pure lives in [`redrive_core::classify`] and is named here again. The others know the errors of
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
//! Each has its table at the function. They claim that nothing was executed only where that is certain, and
//! leave what they do not know to the next.

pub use redrive_core::classify::{Answer, Classify, If, Or, Output, all, io, sqlstate, unknown};

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
