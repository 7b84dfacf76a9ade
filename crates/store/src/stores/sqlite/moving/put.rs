//! Rows out of a file, and into one.
//!
//! Events are written in the order of their seqs, as they were published. So all earlier events of a key are there
//! when one is written, and it is marked as blocked, or as withheld by a rule, as its publisher would have marked it.

use redrive_core::queue_entry::Seq;
use rusqlite::{CachedStatement, Connection, params};

use crate::sql::Value;
use crate::stores::shared::cells::Cells as _;
use crate::stores::shared::columns::Columns;
use crate::stores::shared::moving::row::{Home, Part, Row, STATE, has_run, set_columns};
use crate::stores::shared::moving::table::{Form, Table};
use crate::stores::shared::numbers::{bits, span};
use crate::stores::shared::rows::EVENT_COLUMNS;
use crate::stores::shared::tracked::RowState;
use crate::stores::shared::tracked::states;
use crate::stores::sqlite::operate::rules::Rules;

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
        "SELECT {event}, {bare} FROM redrive_fresh {after} \
         UNION ALL SELECT {columns} FROM redrive_tracked {after} ORDER BY seq"
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

/// Writes rows into a table.
pub(super) fn rows(conn: &Connection, table: &Table, rows: Vec<Row>, rules: &Rules) -> rusqlite::Result<()> {
    let names: Vec<&str> = table.columns.iter().map(|(name, _)| *name).collect();
    for Row { mut values, home } in rows {
        let Some(home) = home else {
            // The next number of a stream is set once all are there.
            let (more, zero) = if table.sqlite == "redrive_stream" { (", next", ", 0") } else { ("", "") };
            insert(conn, table.sqlite, (&names, more, zero), &values)?;
            continue;
        };
        let state = state(conn, &values, &home, rules)?;
        if home.is_fresh && state.is_none_or(|state| state == RowState::Waiting) {
            insert(conn, "redrive_fresh", (&names[..EVENT_COLUMNS], "", ""), &values[..EVENT_COLUMNS])?;
            continue;
        }
        if let Some(state) = state {
            set_stand(&mut values, state);
        }
        let flow = i64::from(has_run(&values));
        insert(conn, "redrive_tracked", (&names, ", stream, flow", &format!(", ?1 >> 40, {flow}")), &values)?;
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

/// The state of an event of a key, if it lives: runnable, blocked or withheld.
fn state(
    conn: &Connection,
    values: &[Value],
    home: &Home,
    rules: &Rules,
) -> rusqlite::Result<Option<RowState>> {
    let row = Part(values);
    let lives = matches!(row.maybe_number(STATE), Ok(Some(state)) if state == RowState::Waiting as i64);
    let Ok(Some(key)) = row.word(2) else { return Ok(None) };
    if !lives {
        return Ok(None);
    }
    let (first, last) = span(home.stream.id);
    let is_held_up: bool = conn
        .prepare_cached(concat!(
            "SELECT EXISTS (SELECT 1 FROM redrive_fresh WHERE key = ?1 AND seq BETWEEN ?2 AND ?3) \
             OR EXISTS (SELECT 1 FROM redrive_tracked WHERE key = ?1 AND state IN (",
            states!(Waiting, Blocked, DeadHolding, Withheld, Leased),
            ") \
             AND seq BETWEEN ?2 AND ?3)"
        ))?
        .query_row(params![key, first, last], |row| row.get(0))?;
    Ok(Some(match rules.withholding(&home.stream, key) {
        _ if is_held_up => RowState::Blocked,
        Some(_) => RowState::Withheld,
        None => RowState::Waiting,
    }))
}

/// Writes the state of an event. A damaged event keeps its wrong checksum.
fn set_stand(values: &mut Vec<Value>, state: RowState) {
    let seq = Seq(bits(Part(values).number(0).unwrap_or_default()));
    match Columns::read(&Part(values), EVENT_COLUMNS, seq) {
        Ok(columns) => set_columns(values, &Columns { state: state as i64, ..columns }, seq),
        Err(_) => values[STATE] = Value::Integer(state as i64),
    }
}
