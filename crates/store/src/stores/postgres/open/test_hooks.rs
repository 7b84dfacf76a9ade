//! For tests of two versions that share a database.

use super::schema::{self, STEPS};
use crate::error::StoreError;
use crate::stores::postgres::{Postgres, PostgresSettings};

/// A future step of the schema.
#[derive(Debug, Clone, Copy)]
pub struct FutureSchemaStep {
    /// Its SQL; `redrive.` is the schema.
    pub sql: &'static str,
    /// How many steps a program must know to work with the result of this one.
    pub least: u32,
}

impl Postgres {
    /// Opens a database as a program that knows these steps in addition to the present ones.
    ///
    /// # Errors
    /// As [`Postgres::open`].
    #[doc(hidden)]
    pub async fn open_with(
        url: &str,
        settings: PostgresSettings,
        more: &[FutureSchemaStep],
    ) -> Result<Self, StoreError> {
        let more = more.iter().map(|FutureSchemaStep { sql, least }| schema::Step { sql, least: *least });
        let steps: Vec<schema::Step> = STEPS.iter().copied().chain(more).collect();
        Self::open_by(url, settings, Vec::leak(steps)).await
    }
}
