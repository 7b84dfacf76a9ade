//! How a database is opened.

use std::time::Duration;

/// How long the name of a process may be: enough for a host's.
const NAME_MAX: usize = 255;
/// How long a lease may be: longer than anybody would wait for a take-over.
const LEASE_MAX: Duration = Duration::from_secs(86_400);

/// How a database is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// The schema that everything is in; made where there is none. Default: `redrive`.
    pub schema: String,
    /// How many shards a new store has. One that is there keeps its number. Default: 16.
    pub shards: u32,
    /// How many connections there are at most, two of them for looking around. Default: 12.
    pub connections: u32,
    /// How long this process owns its shards after it was heard of last. Default: 15 seconds.
    pub lease: Duration,
    /// How long a commit waits for somebody else's lock. Default: 5 seconds.
    pub lock_wait: Duration,
    /// How long a call goes on trying where the database cannot be reached, or did not answer. Default: 5 seconds.
    pub patience: Duration,
    /// Whether somebody is in between who gives every transaction another session, as PgBouncer does in its
    /// transaction mode: no statement is prepared for later, and nobody listens for hints. Default: no; and yes with
    /// `statement-cache-capacity=0` in the URL.
    pub pooled: bool,
    /// What this process is called among those that share the database. Default: its number.
    pub name: String,
}

impl Default for Settings {
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

impl Settings {
    /// Whether a database can be opened with them.
    ///
    /// # Errors
    /// With what is wrong with them.
    pub fn check(&self) -> Result<(), String> {
        let plain = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
        let begins_well = self.schema.starts_with(|first: char| first.is_ascii_lowercase() || first == '_');
        if !begins_well || self.schema.len() > 48 || !self.schema.chars().all(plain) {
            return Err(format!(
                "the schema `{}` must be a name of at most 48 small letters, digits and `_`, and begin with no digit",
                self.schema
            ));
        }
        if self.shards == 0 || self.shards > 1024 {
            return Err(format!("{} shards are not between 1 and 1024", self.shards));
        }
        if self.connections < 4 {
            return Err(format!("{} connections are too few; give it 4 at least", self.connections));
        }
        if self.patience.is_zero() {
            return Err("without patience nothing is ever reached; give it some seconds".to_owned());
        }
        if self.lease < Duration::from_secs(1) || self.lease > LEASE_MAX {
            return Err(format!("a lease of {:?} is not between a second and a day", self.lease));
        }
        if self.name.is_empty() || self.name.len() > NAME_MAX || self.name.chars().any(char::is_control) {
            return Err(format!(
                "the name of a process has 1 to {NAME_MAX} bytes, and nothing that does not show"
            ));
        }
        Ok(())
    }
}
