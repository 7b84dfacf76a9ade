//! Locked secrets in the store itself, in a table of the server's own: a backup of the store has them too. Its name
//! does not begin with `redrive_`, because those tables are the store's alone to write.

use std::error::Error;

use redrive::Transaction;
use redrive::rusqlite;

/// A version of a secret, as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) version: u32,
    pub(super) created_ms: i64,
    /// Until when it signs, where a newer one has taken its place.
    pub(super) until_ms: Option<i64>,
    pub(super) locked: Vec<u8>,
}

type Failed = Box<dyn Error + Send + Sync>;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS server_secret (
    name TEXT NOT NULL, version INTEGER NOT NULL, created_ms INTEGER NOT NULL, until_ms INTEGER,
    locked BLOB NOT NULL, PRIMARY KEY (name, version)) STRICT, WITHOUT ROWID";

/// What keys begin with in a store in memory.
const PREFIX: &str = "server_secret/";

/// All of them, by name and version.
pub(super) fn read(tx: &mut Transaction<'_>) -> Result<Vec<Row>, Failed> {
    if let Some(table) = tx.memory() {
        let rows = table.range(PREFIX.to_owned()..).take_while(|(key, _)| key.starts_with(PREFIX));
        return rows.map(|(key, row)| remembered(key, row)).collect();
    }
    let connection = connection(tx)?;
    connection.execute(TABLE, ())?;
    let mut reading = connection.prepare(
        "SELECT name, version, created_ms, until_ms, locked FROM server_secret ORDER BY name, version",
    )?;
    let rows = reading.query_map((), |row| {
        Ok(Row {
            name: row.get(0)?,
            version: row.get(1)?,
            created_ms: row.get(2)?,
            until_ms: row.get(3)?,
            locked: row.get(4)?,
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Has these instead of those of that name.
pub(super) fn write(tx: &mut Transaction<'_>, name: &str, rows: &[Row]) -> Result<(), Failed> {
    if let Some(table) = tx.memory() {
        table.retain(|key, _| !key.starts_with(&format!("{PREFIX}{name}/")));
        for row in rows {
            let Row { name, version, created_ms, until_ms, locked } = row;
            let value = serde_json::to_vec(&(created_ms, until_ms, locked))?;
            table.insert(format!("{PREFIX}{name}/{version:010}"), value);
        }
        return Ok(());
    }
    let connection = connection(tx)?;
    connection.execute(TABLE, ())?;
    connection.execute("DELETE FROM server_secret WHERE name = ?1", (name,))?;
    for Row { name, version, created_ms, until_ms, locked } in rows {
        connection.execute(
            "INSERT INTO server_secret VALUES (?1, ?2, ?3, ?4, ?5)",
            (name, version, created_ms, until_ms, locked),
        )?;
    }
    Ok(())
}

fn connection<'a>(tx: &'a mut Transaction<'_>) -> Result<&'a rusqlite::Connection, Failed> {
    tx.sqlite().ok_or_else(|| "this store keeps no secrets".into())
}

fn remembered(key: &str, row: &[u8]) -> Result<Row, Failed> {
    let (name, version) = key[PREFIX.len()..].rsplit_once('/').ok_or("a key without a version")?;
    let (created_ms, until_ms, locked) = serde_json::from_slice(row)?;
    Ok(Row { name: name.to_owned(), version: version.parse()?, created_ms, until_ms, locked })
}
