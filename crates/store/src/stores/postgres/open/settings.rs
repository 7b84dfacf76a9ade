//! How a database is opened.

use std::time::Duration;

/// How long the name of a process may be: enough for a host's.
const NAME_MAX: usize = 255;
/// How long a lease may be: longer than an operator would wait for a takeover.
const LEASE_MAX: Duration = Duration::from_secs(86_400);

/// How a database is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PostgresSettings {
    /// The schema that contains everything; created if necessary. Default: `redrive`.
    pub schema: String,
    /// How many shards a new store has. An existing store keeps its number. Default: 16.
    pub shards: u32,
    /// How many connections there are at most, including those reserved for heartbeats and notifications. Default: 12.
    pub connections: u32,
    /// How long this process owns its shards after its last renewal. Default: 15 seconds.
    pub lease: Duration,
    /// How long a commit waits for another transaction's lock. Default: 5 seconds.
    pub lock_wait: Duration,
    /// How long a call keeps trying if the database is unreachable or does not answer. Default: 5 seconds.
    pub patience: Duration,
    /// Whether a pooler gives every transaction another session, as PgBouncer does in its transaction mode: no
    /// statement is prepared for later, and the store does not listen for notifications. Default: no; and yes with
    /// `statement-cache-capacity=0` in the URL.
    pub pooled: bool,
    /// The name of this process among those that share the database. Default: its number.
    pub name: String,
}

impl Default for PostgresSettings {
    fn default() -> Self {
        Self {
            schema: "redrive".to_owned(),
            shards: 16,
            connections: 12,
            lease: Duration::from_secs(15),
            lock_wait: Duration::from_secs(5),
            patience: Duration::from_secs(5),
            pooled: false,
            name: format!("process {}", std::process::id()),
        }
    }
}

impl PostgresSettings {
    /// Checks the settings.
    ///
    /// # Errors
    /// If a setting is invalid.
    pub fn check(&self) -> Result<(), String> {
        let plain = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
        let begins_well = self.schema.starts_with(|first: char| first.is_ascii_lowercase() || first == '_');
        if !begins_well || self.schema.len() > 48 || !self.schema.chars().all(plain) {
            return Err(format!(
                "the schema `{}` must have at most 48 lower-case letters, digits and `_`, and must not begin with a digit",
                self.schema
            ));
        }
        if self.shards == 0 || self.shards > 1024 {
            return Err(format!("{} shards are not between 1 and 1024", self.shards));
        }
        if self.connections < 4 {
            return Err(format!("{} connections are too few; use at least 4", self.connections));
        }
        if self.patience.is_zero() {
            return Err("the patience must not be zero; use some seconds".to_owned());
        }
        if self.lease < Duration::from_secs(1) || self.lease > LEASE_MAX {
            return Err(format!("a lease of {:?} is not between a second and a day", self.lease));
        }
        if self.name.is_empty() || self.name.len() > NAME_MAX || self.name.chars().any(char::is_control) {
            return Err(format!(
                "the name of a process must have 1 to {NAME_MAX} bytes and no control characters"
            ));
        }
        Ok(())
    }
}
