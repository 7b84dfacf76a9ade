//! Compare and set: two writers of one value.
//!
//! Off, each reads the value and writes it back plus one. On, each stores under the version that it read, and the row
//! remembers operations. The second writer runs between the read and the write of the first, where the schedule says so.

use anyhow::Result;
use redrive::cas::sqlite::{SqliteVersionedRow, create};
use redrive::cas::{Cas, VersionColumn};
use redrive::rusqlite::{Connection, OptionalExtension};

use crate::life::Life;

/// How many writers there are: each adds one for each item.
pub(crate) const WRITERS: u64 = 2;

pub(super) fn live(life: &Life) -> Result<()> {
    let mut first = open(life)?;
    let mut second = open(life)?;
    let done = life.noted("done");
    for item in Life::items().filter(|item| !done.contains(item)) {
        let meets = life.happens("meet", &item, 2);
        life.crash_point();
        add(life, &mut first, &format!("first-{item}"), || {
            if meets { other(life, &mut second, &item) } else { Ok(()) }
        })?;
        life.crash_point();
        if !meets {
            other(life, &mut second, &item)?;
        }
        life.crash_point();
        life.note("done", &item)?;
    }
    report(life, &first)
}

fn open(life: &Life) -> Result<Connection> {
    let mut file = Connection::open(life.folder.join("shop.db"))?;
    file.execute_batch(
        "CREATE TABLE IF NOT EXISTS total (name TEXT PRIMARY KEY, n INTEGER, version INTEGER NOT NULL)",
    )?;
    create(&file)?;
    let known = file.query_row("SELECT 1 FROM total", [], |_| Ok(())).optional()?;
    if known.is_none() {
        SqliteVersionedRow::<_, i64>::new(&mut file, columns()?, "all").insert(0)?;
    }
    Ok(file)
}

fn columns() -> Result<VersionColumn> {
    Ok(VersionColumn::new("total", "name", "n", "version")?)
}

fn other(life: &Life, file: &mut Connection, item: &str) -> Result<()> {
    add(life, file, &format!("second-{item}"), || Ok(()))
}

/// Adds one under this operation; `between` runs after the first read.
fn add(
    life: &Life,
    file: &mut Connection,
    operation: &str,
    between: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let mut between = Some(between);
    let mut meet = || between.take().map_or(Ok(()), |between| between());
    if life.is_guarded() {
        let mut row = SqliteVersionedRow::<_, i64>::new(file, columns()?, "all");
        let mut met = Ok(());
        let changed = Cas::new(operation).change_blocking(&mut row, |n| {
            met = std::mem::replace(&mut met, Ok(())).and_then(|()| meet());
            n + 1
        });
        met?;
        changed?;
        return Ok(());
    }
    let n: i64 = file.query_row("SELECT n FROM total", [], |row| row.get(0))?;
    meet()?;
    file.execute("UPDATE total SET n = ?1", [n + 1])?;
    Ok(())
}

/// The value goes to where effects are counted: that many rows.
fn report(life: &Life, file: &Connection) -> Result<()> {
    let n: i64 = file.query_row("SELECT n FROM total", [], |row| row.get(0))?;
    for _ in 0..n {
        life.witness.effect("value", None, false)?;
    }
    Ok(())
}
