//! In a SQLite file.
/// A store in a SQLite file.
#[derive(Debug, Default)]
pub struct Sqlite;
