//! For tests of two versions that share a database.

use super::schema::{self, STEPS};
use super::{Postgres, Settings};
use crate::error::StoreError;

/// A step of the schema that there might be one day.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// What it does; `redrive.` is the schema.
    pub sql: &'static str,
    /// How many steps a program has to know, to work with what this one makes.
    pub least: u32,
}

impl Postgres {
    /// Opens a database as a program would that knows these steps after the ones that there are.
    ///
    /// # Errors
    /// As [`Postgres::open`].
    #[doc(hidden)]
    pub async fn open_with(url: &str, settings: Settings, more: &[Step]) -> Result<Self, StoreError> {
        let more = more.iter().map(|Step { sql, least }| schema::Step { sql, least: *least });
        let steps: Vec<schema::Step> = STEPS.iter().copied().chain(more).collect();
        Self::open_by(url, settings, Vec::leak(steps)).await
    }
}
