//! Rows out of a file, and into one.
//!
//! Events are put in the order of their seqs, as they were published. So whatever of a key comes before one is there
//! when it is put, and it is marked as waiting for that, or as withheld by a rule, as its publisher would have marked it.

use redrive_core::entry::Seq;
use rusqlite::{CachedStatement, Connection, params};

use super::super::numbers::{bits, span};
use super::super::rules::Rules;
use crate::sql::Value;
use crate::stores::shared::cells::Cells as _;
use crate::stores::shared::columns::Columns;
use crate::stores::shared::held::Stand;
use crate::stores::shared::moving::row::{Home, Part, Row, STATE, has_run, set_columns};
use crate::stores::shared::moving::table::{Form, Table};
use crate::stores::shared::rows::EVENT_COLUMNS;

/// The statement that reads a table in the order of its key.
pub(super) fn select(table: &Table, is_after: bool) -> String {
    let names: Vec<&str> = table.columns.iter().map(|(name, _)| *name).collect();
    let (key, columns) = (names[..table.key].join(", "), names.join(", "));
    let values: Vec<String> = (1..=table.key).map(|at| format!("?{at}")).collect();
    let after = if is_after { format!("WHERE ({key}) > ({})", values.join(", ")) } else { String::new() };
    if table.form != Form::Event {
        return format!("SELECT {columns} FROM {} {after} ORDER BY {key}", table.sqlite);
    }
    let bare = vec!["NULL"; names.len() - EVENT_COLUMNS].join(", ");
    let event = names[..EVENT_COLUMNS].join(", ");
    format!(
        "SELECT {event}, {bare} FROM redrive_live {after} \
         UNION ALL SELECT {columns} FROM redrive_held {after} ORDER BY seq"
    )
}

pub(super) fn bind(statement: &mut CachedStatement<'_>, at: usize, value: &Value) -> rusqlite::Result<()> {
    match value {
        Value::Null => statement.raw_bind_parameter(at, rusqlite::types::Null),
        Value::Integer(number) => statement.raw_bind_parameter(at, number),
        Value::Real(number) => statement.raw_bind_parameter(at, number),
        Value::Text(text) => statement.raw_bind_parameter(at, text),
        Value::Bytes(bytes) => statement.raw_bind_parameter(at, bytes),
    }
}

/// Puts rows into a table.
pub(super) fn rows(conn: &Connection, table: &Table, rows: Vec<Row>, rules: &Rules) -> rusqlite::Result<()> {
    let names: Vec<&str> = table.columns.iter().map(|(name, _)| *name).collect();
    for Row { mut values, home } in rows {
        let Some(home) = home else {
            // Where a stream goes on is said once all are there.
            let (more, zero) = if table.sqlite == "redrive_stream" { (", next", ", 0") } else { ("", "") };
            insert(conn, table.sqlite, (&names, more, zero), &values)?;
            continue;
        };
        let stand = stand(conn, &values, &home, rules)?;
        if home.is_fresh && stand.is_none_or(|stand| stand == Stand::Waits) {
            insert(conn, "redrive_live", (&names[..EVENT_COLUMNS], "", ""), &values[..EVENT_COLUMNS])?;
            continue;
        }
        if let Some(stand) = stand {
            set_stand(&mut values, stand);
        }
        let flow = i64::from(has_run(&values));
        insert(conn, "redrive_held", (&names, ", stream, flow", &format!(", ?1 >> 40, {flow}")), &values)?;
    }
    Ok(())
}

fn insert(
    conn: &Connection,
    table: &str,
    (names, more, filled): (&[&str], &str, &str),
    values: &[Value],
) -> rusqlite::Result<()> {
    let places: Vec<String> = (1..=values.len()).map(|at| format!("?{at}")).collect();
    let columns = names.join(", ");
    let sql = format!("INSERT INTO {table} ({columns}{more}) VALUES ({}{filled})", places.join(", "));
    let mut insert = conn.prepare_cached(&sql)?;
    for (at, value) in values.iter().enumerate() {
        bind(&mut insert, at + 1, value)?;
    }
    insert.raw_execute().map(drop)
}

/// Where an event of a key stands, if it lives: it runs, waits for the one before it, or is withheld.
fn stand(conn: &Connection, values: &[Value], home: &Home, rules: &Rules) -> rusqlite::Result<Option<Stand>> {
    let row = Part(values);
    let lives = matches!(row.maybe_number(STATE), Ok(Some(state)) if state == Stand::Waits as i64);
    let Ok(Some(key)) = row.word(2) else { return Ok(None) };
    if !lives {
        return Ok(None);
    }
    let (first, last) = span(home.stream.id);
    let is_held_up: bool = conn
        .prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM redrive_live WHERE key = ?1 AND seq BETWEEN ?2 AND ?3) \
             OR EXISTS (SELECT 1 FROM redrive_held WHERE key = ?1 AND state IN (0, 1, 2, 4, 6) \
             AND seq BETWEEN ?2 AND ?3)",
        )?
        .query_row(params![key, first, last], |row| row.get(0))?;
    Ok(Some(match rules.withholding(&home.stream, key) {
        _ if is_held_up => Stand::Blocked,
        Some(_) => Stand::Withheld,
        None => Stand::Waits,
    }))
}

/// Writes where an event stands. What is damaged keeps its wrong checksum.
fn set_stand(values: &mut Vec<Value>, stand: Stand) {
    let seq = Seq(bits(Part(values).number(0).unwrap_or_default()));
    match Columns::read(&Part(values), EVENT_COLUMNS, seq) {
        Ok(columns) => set_columns(values, &Columns { state: stand as i64, ..columns }, seq),
        Err(_) => values[STATE] = Value::Integer(stand as i64),
    }
}
