//! The tables that are moved: their columns, under their names in both databases.
//!
//! Both SQL stores have the same tables under different names, because they share the codecs of their rows. The
//! columns here are in the order of the codecs, so a moved row can be checked, whichever side it came from.
//!
//! A table that is not listed here is not moved. `tests/moving_schemas.rs` fails for every column of both schemas that
//! is missing here.

use crate::stores::shared::jobs::job_columns;
use crate::stores::shared::ledger::record_columns;
use crate::stores::shared::tracked::tracked_columns;

/// The type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::stores) enum Kind {
    Number,
    Text,
    Bytes,
}

/// How a row of a table is checked and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::stores) enum Form {
    /// Without a checksum: written as it is.
    Plain,
    /// An event: in one of two tables, on both sides.
    Event,
    DedupeRecord,
    End,
    Request,
    Job,
}

/// A table that is moved.
#[derive(Debug, Clone)]
pub(in crate::stores) struct Table {
    /// Its name in messages.
    pub(in crate::stores) name: &'static str,
    pub(in crate::stores) form: Form,
    /// Its name in SQLite.
    pub(in crate::stores) sqlite: &'static str,
    /// Its name in PostgreSQL, without the schema.
    pub(in crate::stores) postgres: &'static str,
    /// The columns, key columns first.
    pub(in crate::stores) columns: Vec<(&'static str, Kind)>,
    /// How many columns its key has.
    pub(in crate::stores) key: usize,
}

/// Name, form, name in SQLite, name in PostgreSQL, columns in the key, columns.
type Line = (&'static str, Form, &'static str, &'static str, usize, &'static str);

/// The store's own tables, in the order of the move: writing an event needs the rules. Columns are numbers unless
/// [`KINDS`] says otherwise.
const TABLES: [Line; 12] = [
    (
        "queues",
        Form::Plain,
        "redrive_queue",
        "queue",
        1,
        "name, ordered, dedupe_window, horizon, pull, keep_time, keep_count",
    ),
    ("streams", Form::Plain, "redrive_stream", "stream", 1, "id, queue, tenant"),
    ("rules", Form::Plain, "redrive_rule", "rule", 1, "rule, since, until, who, why"),
    ("events", Form::Event, "redrive_tracked", "tracked", 1, tracked_columns!()),
    (
        "dedupe records",
        Form::DedupeRecord,
        "redrive_dedupe",
        "dedupe",
        2,
        "id, stream, fingerprint, seq, published, until, state, ended, attempts, history, result, became, crc",
    ),
    (
        "ends",
        Form::End,
        "redrive_ending",
        "ending",
        1,
        "seq, state, ended, attempts, history, result, token, crc",
    ),
    ("markers", Form::Plain, "redrive_inbox", "inbox", 2, "handler, id, until"),
    ("kept", Form::Plain, "redrive_kept", "kept", 1, "name, bytes"),
    ("requests", Form::Request, "redrive_request", "request", 3, concat!(record_columns!(), ", body")),
    ("jobs", Form::Job, "redrive_job", "job", 1, job_columns!()),
    (
        "groups",
        Form::Plain,
        "redrive_tally",
        "tally",
        2,
        "stream, cause, title, letters, holding, first, last, redrive, redriven_at, redriven_letters, redriven_failed",
    ),
    ("audit", Form::Plain, "redrive_audit", "audit", 1, "number, at, who, place, verb, target, count, note"),
];

/// The text columns and the byte columns of each table.
const KINDS: [(&str, &str, &str); 12] = [
    ("queues", "name", ""),
    ("streams", "queue, tenant", ""),
    ("rules", "rule, who, why", ""),
    ("events", "id, key, tag, mode, history, reason, route", "payload, extra, lease_token"),
    ("dedupe records", "id, state, history, became", "fingerprint, result"),
    ("ends", "state, history", "result, token"),
    ("markers", "handler, id", ""),
    ("kept", "name", "bytes"),
    ("requests", "tenant, operation, key, phase, headers, place, resource", "print, body"),
    ("jobs", "plan, state, why, who", ""),
    ("groups", "title", ""),
    ("audit", "who, place, verb, target, note", ""),
];

/// All tables that are moved, in their order.
pub(in crate::stores) fn tables() -> Vec<Table> {
    let table = |(name, form, sqlite, postgres, key, columns): &Line| {
        let (texts, bytes) =
            KINDS.iter().find(|(of, ..)| of == name).map_or(("", ""), |(_, texts, bytes)| (*texts, *bytes));
        let has = |list: &str, column: &str| list.split(", ").any(|name| name == column);
        let kind = |column: &str| match column {
            column if has(texts, column) => Kind::Text,
            column if has(bytes, column) => Kind::Bytes,
            _ => Kind::Number,
        };
        let columns = columns.split(", ").map(|column| (column, kind(column))).collect();
        Table { name, form: *form, sqlite, postgres, columns, key: *key }
    };
    TABLES.iter().map(table).collect()
}
