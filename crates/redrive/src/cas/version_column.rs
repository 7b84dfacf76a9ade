//! Which columns of a table hold the key, the value and its version.

/// A table whose rows have a version.
///
/// The version column is a `bigint` without a default of its own kind: every version comes from one counter of the
/// database, for inserts and updates alike. A counter per row would start again when the row is deleted and inserted,
/// and a writer that slept in between would find "its" version (ABA).
///
/// ```
/// use redrive::cas::VersionColumn;
///
/// let stock = VersionColumn::new("stock", "article", "pieces", "version")?;
/// assert!(VersionColumn::new("stock; drop table stock", "a", "b", "c").is_err());
/// # Ok::<(), redrive::cas::NameError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionColumn {
    pub(super) table: String,
    pub(super) key: String,
    pub(super) value: String,
    pub(super) version: String,
}

/// A name that is no plain identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no plain name; use letters, digits and underscores, with a dot after a schema")]
pub struct NameError(String);

impl VersionColumn {
    /// The columns of this table. Names are letters, digits and underscores; a schema may precede the table's.
    ///
    /// # Errors
    /// For any other name, because it becomes part of a statement.
    pub fn new(table: &str, key: &str, value: &str, version: &str) -> Result<Self, NameError> {
        let part = |name: &str| {
            let mut letters = name.chars();
            letters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
                && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
        };
        for name in [key, value, version] {
            if !part(name) {
                return Err(NameError(name.to_owned()));
            }
        }
        if !(table.split('.').count() <= 2 && table.split('.').all(part)) {
            return Err(NameError(table.to_owned()));
        }
        let [table, key, value, version] = [table, key, value, version].map(str::to_owned);
        Ok(Self { table, key, value, version })
    }

    pub(super) fn load(&self) -> String {
        let Self { table, key, value, version } = self;
        format!("SELECT {value}, {version} FROM {table} WHERE {key} = $1")
    }

    /// Stores `$1` under key `$2` if the version is `$3`; `next` is the expression for the next version.
    pub(super) fn store(&self, next: &str) -> String {
        let Self { table, key, value, version } = self;
        format!("UPDATE {table} SET {value} = $1, {version} = {next} WHERE {key} = $2 AND {version} = $3")
    }

    pub(super) fn insert(&self, next: &str) -> String {
        let Self { table, key, value, version } = self;
        format!("INSERT INTO {table} ({key}, {value}, {version}) VALUES ($1, $2, {next})")
    }
}
