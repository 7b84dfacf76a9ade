//! What is moved: each table with its columns, in the words of both databases.
//!
//! Both kinds of SQL store have the same tables under other names, because they have their rows' codecs in common. The
//! columns here are in the order that the codecs read, so a row that is moved is a row that can be checked, whichever
//! side it came from.
//!
//! What is not here is not moved. `tests/moving_schemas.rs` looks through both schemas for columns that nobody thought of.

use crate::stores::shared::held::held_columns;
use crate::stores::shared::jobs::job_columns;
use crate::stores::shared::record::record_columns;

/// What a column has in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::stores) enum Kind {
    Number,
    Text,
    Bytes,
}

/// How a row of a table is checked and put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::stores) enum Form {
    /// It has no checksum, and is put as it is.
    Plain,
    /// An event: in one of two tables, on both sides.
    Event,
    Receipt,
    End,
    Request,
    Job,
}

/// A table that is moved.
#[derive(Debug, Clone)]
pub(in crate::stores) struct Table {
    /// What it is called for people.
    pub(in crate::stores) name: &'static str,
    pub(in crate::stores) form: Form,
    /// Its name in SQLite.
    pub(in crate::stores) sqlite: &'static str,
    /// Its name in PostgreSQL, without the schema.
    pub(in crate::stores) postgres: &'static str,
    /// The columns, those of its key first.
    pub(in crate::stores) columns: Vec<(&'static str, Kind)>,
    /// How many columns its key has.
    pub(in crate::stores) key: usize,
}

/// Name, form, name in SQLite, name in PostgreSQL, columns in the key, columns.
type Line = (&'static str, Form, &'static str, &'static str, usize, &'static str);

/// The store's own tables, in the order in which they are moved: whoever puts an event asks for the rules. Columns are
/// numbers where [`KINDS`] does not say otherwise.
const TABLES: [Line; 12] = [
    (
        "queues",
        Form::Plain,
        "redrive_queue",
        "queue",
        1,
        "name, ordered, window, horizon, pull, keep_time, keep_count",
    ),
    ("streams", Form::Plain, "redrive_stream", "stream", 1, "id, queue, tenant"),
    ("rules", Form::Plain, "redrive_rule", "rule", 1, "rule, since, until, who, why"),
    ("events", Form::Event, "redrive_held", "held", 1, held_columns!()),
    (
        "receipts",
        Form::Receipt,
        "redrive_receipt",
        "receipt",
        2,
        "id, stream, fingerprint, seq, published, until, state, ended, attempts, story, result, became, crc",
    ),
    ("ends", Form::End, "redrive_end", "ending", 1, "seq, state, ended, attempts, story, result, token, crc"),
    ("markers", Form::Plain, "redrive_inbox", "inbox", 2, "handler, id, until"),
    ("kept", Form::Plain, "redrive_kept", "kept", 1, "name, bytes"),
    ("requests", Form::Request, "redrive_request", "request", 3, concat!(record_columns!(), ", body")),
    ("jobs", Form::Job, "redrive_job", "job", 1, job_columns!()),
    (
        "groups",
        Form::Plain,
        "redrive_group",
        "tally",
        2,
        "stream, cause, title, letters, holding, first, last, redrive, redriven_at, redriven_letters, redriven_failed",
    ),
    ("audit", Form::Plain, "redrive_audit", "audit", 1, "number, at, who, place, verb, target, count, note"),
];

/// The columns of each table that are texts, and those that are bytes.
const KINDS: [(&str, &str, &str); 12] = [
    ("queues", "name", ""),
    ("streams", "queue, tenant", ""),
    ("rules", "rule, who, why", ""),
    ("events", "id, key, tag, mode, story, reason, route", "payload, extra, lease_token"),
    ("receipts", "id, state, story, became", "fingerprint, result"),
    ("ends", "state, story", "result, token"),
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

impl Table {
    /// What a column is called in PostgreSQL, which has a word of its own called `window`.
    #[cfg(feature = "postgres")]
    pub(in crate::stores) fn in_postgres(column: &'static str) -> &'static str {
        if column == "window" { "remembered" } else { column }
    }
}
