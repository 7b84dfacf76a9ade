//! Transaction retry: a body that runs again, with an email in it.
//!
//! Off, the body sends the email itself. On, it writes the email into an outbox, and a relay sends what is committed,
//! under the row's own key. A conflict ends the first run of some bodies.

use anyhow::Result;
use redrive::rusqlite::{Connection, Error, Transaction, ffi};
use redrive::transaction::TransactionSettings;
use redrive::transaction::sqlite::transact_once;

use crate::life::Life;

pub(super) fn live(life: &Life) -> Result<()> {
    let mut file = Connection::open(life.folder.join("shop.db"))?;
    file.execute_batch(
        "CREATE TABLE IF NOT EXISTS booking (id TEXT); CREATE TABLE IF NOT EXISTS outbox (id TEXT PRIMARY KEY)",
    )?;
    redrive::cas::sqlite::create(&file)?;
    let settings = TransactionSettings::default();
    for item in Life::items() {
        let mut runs = 0;
        life.crash_point();
        transact_once(&mut file, &item, &settings, |tx| {
            runs += 1;
            book(life, tx, &item)?;
            if runs == 1 && life.happens("conflict", &item, 2) {
                return Err(Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_BUSY), None).into());
            }
            Ok(())
        })?;
        life.crash_point();
        relay(life, &file)?;
        life.crash_point();
    }
    Ok(())
}

fn book(life: &Life, tx: &Transaction<'_>, item: &str) -> Result<()> {
    tx.execute("INSERT INTO booking VALUES (?1)", [item])?;
    if life.is_guarded() {
        tx.execute("INSERT INTO outbox VALUES (?1)", [item])?;
        return Ok(());
    }
    // A client that is not Redrive's escapes the check of the body.
    life.witness.effect(item, None, false)
}

/// Sends what is committed; a row goes when its email was answered.
fn relay(life: &Life, file: &Connection) -> Result<()> {
    let mut rows = file.prepare("SELECT id FROM outbox")?;
    let waiting: Vec<String> = rows.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    for id in waiting {
        life.witness.effect(&id, Some(&id), false)?;
        life.crash_point();
        file.execute("DELETE FROM outbox WHERE id = ?1", [&id])?;
    }
    Ok(())
}
