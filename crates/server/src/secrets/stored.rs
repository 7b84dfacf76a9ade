//! Locked secrets in the store itself: a backup of the store has them, too.

use std::error::Error;

use redrive::Transaction;

/// A stored version of a secret.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) version: u32,
    pub(super) created_ms: i64,
    /// Until when it signs, if a newer one replaced it.
    pub(super) until_ms: Option<i64>,
    pub(super) locked: Vec<u8>,
}

type Failed = Box<dyn Error + Send + Sync>;

/// What their names in the store begin with.
const BEGINNING: &str = "server_secret/";

/// All of them, by name and version.
pub(super) fn read(tx: &mut Transaction<'_>) -> Result<Vec<Row>, Failed> {
    let mut rows = Vec::new();
    for (place, versions) in tx.kept(BEGINNING)? {
        let name = &place[BEGINNING.len()..];
        let versions: Vec<(u32, i64, Option<i64>, Vec<u8>)> = serde_json::from_slice(&versions)?;
        rows.extend(versions.into_iter().map(|(version, created_ms, until_ms, locked)| Row {
            name: name.to_owned(),
            version,
            created_ms,
            until_ms,
            locked,
        }));
    }
    Ok(rows)
}

/// Replaces the rows of a name.
pub(super) fn write(tx: &mut Transaction<'_>, name: &str, rows: &[Row]) -> Result<(), Failed> {
    let versions: Vec<_> =
        rows.iter().map(|row| (row.version, row.created_ms, row.until_ms, &row.locked)).collect();
    let bytes = if versions.is_empty() { None } else { Some(serde_json::to_vec(&versions)?) };
    Ok(tx.keep(&format!("{BEGINNING}{name}"), bytes.as_deref())?)
}
