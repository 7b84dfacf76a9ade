//! Rows out of a database, and into one: many per statement, a column as an array.

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, PgConnection, Postgres, Row as _};

use crate::sql::Value;
use crate::stores::shared::moving::row::{Row, has_run};
use crate::stores::shared::moving::table::{Form, Kind, Table};
use crate::stores::shared::moving::{BATCH_BYTES, Values};
use crate::stores::shared::rows::EVENT_COLUMNS;

/// A column, by its name.
type Column = (&'static str, Kind);

/// Reads a batch of a table in the order of its key. The database sums up the sizes, which it knows without reading
/// large values.
pub(super) async fn read(
    conn: &mut PgConnection,
    schema: &str,
    table: &Table,
    after: Option<&[Value]>,
    most: usize,
) -> sqlx::Result<Vec<Values>> {
    let sql = select(schema, table, after.is_some(), most);
    let mut query = sqlx::query(AssertSqlSafe(sql));
    for value in after.unwrap_or_default() {
        query = match value {
            Value::Integer(number) => query.bind(*number),
            Value::Text(text) => query.bind(text.clone()),
            _ => return Err(sqlx::Error::Protocol("a key is neither a number nor a text".to_owned())),
        };
    }
    let rows = query.fetch_all(conn).await?;
    rows.iter().map(|row| values(table, row)).collect()
}

fn values(table: &Table, row: &PgRow) -> sqlx::Result<Values> {
    let value = |(at, (_, kind)): (usize, &Column)| {
        Ok(match kind {
            Kind::Number => row.try_get::<Option<i64>, _>(at)?.into(),
            Kind::Text => row.try_get::<Option<String>, _>(at)?.into(),
            Kind::Bytes => row.try_get::<Option<Vec<u8>>, _>(at)?.into(),
        })
    };
    table.columns.iter().enumerate().map(value).collect()
}

fn select(schema: &str, table: &Table, is_after: bool, most: usize) -> String {
    let names: Vec<&str> = table.columns.iter().map(|(name, _)| *name).collect();
    let columns = names.join(", ");
    // Texts are compared by their bytes, as everywhere else.
    let keys: Vec<String> = names
        .iter()
        .zip(&table.columns)
        .take(table.key)
        .map(
            |(name, (_, kind))| {
                if *kind == Kind::Text { format!("{name} COLLATE \"C\"") } else { (*name).to_owned() }
            },
        )
        .collect();
    let key = keys.join(", ");
    let places: Vec<String> = (1..=table.key).map(|at| format!("${at}")).collect();
    let after = if is_after { format!("WHERE ({key}) > ({})", places.join(", ")) } else { String::new() };
    let page = |of: &str, columns: &str| {
        format!("(SELECT {columns} FROM {schema}.{of} {after} ORDER BY {key} LIMIT {most})")
    };
    let from = if table.form == Form::Event {
        let bare =
            table.columns[EVENT_COLUMNS..].iter().map(|(_, kind)| format!("NULL::{}", sql_type(*kind)));
        let bare = bare.collect::<Vec<_>>().join(", ");
        let event = names[..EVENT_COLUMNS].join(", ");
        let both =
            format!("{} UNION ALL {}", page("tracked", &columns), page("fresh", &format!("{event}, {bare}")));
        format!("(SELECT * FROM ({both}) event ORDER BY {key} LIMIT {most})")
    } else {
        page(table.postgres, &columns)
    };
    let large = names.iter().zip(&table.columns).filter(|(_, (_, kind))| *kind != Kind::Number);
    let size: String = large.map(|(name, _)| format!(" + coalesce(octet_length({name}), 0)")).collect();
    let size = format!("({}{size})", 16 * names.len());
    format!(
        "SELECT {columns} FROM (SELECT *, sum({size}) OVER (ORDER BY {key}) - {size} AS bytes_before FROM {from} page) \
         sized WHERE bytes_before < {BATCH_BYTES} ORDER BY {key}"
    )
}

const fn sql_type(kind: Kind) -> &'static str {
    match kind {
        Kind::Number => "bigint",
        Kind::Text => "text",
        Kind::Bytes => "bytea",
    }
}

/// Puts rows into a table.
pub(super) async fn rows(
    conn: &mut PgConnection,
    schema: &str,
    table: &Table,
    rows: Vec<Row>,
) -> sqlx::Result<()> {
    if table.form != Form::Event {
        let rows = rows.into_iter().map(|row| row.values).collect();
        return insert(conn, schema, table.postgres, &table.columns, rows).await;
    }
    let place = [("stream", Kind::Number), ("shard", Kind::Number)];
    let fresh: Vec<Column> = table.columns[..EVENT_COLUMNS].iter().copied().chain(place).collect();
    let tracked: Vec<Column> =
        table.columns.iter().copied().chain(place).chain([("flow", Kind::Number)]).collect();
    let (mut lives, mut helds) = (Vec::new(), Vec::new());
    for Row { mut values, home } in rows {
        let Some(home) = home else { continue };
        let flow = i64::from(has_run(&values));
        let place = [i64::from(home.stream.id.0), i64::from(home.shard)].map(Value::Integer);
        if home.is_fresh {
            values.truncate(EVENT_COLUMNS);
            values.extend(place);
            lives.push(values);
        } else {
            values.extend(place);
            values.push(Value::Integer(flow));
            helds.push(values);
        }
    }
    insert(conn, schema, "fresh", &fresh, lives).await?;
    insert(conn, schema, "tracked", &tracked, helds).await
}

async fn insert(
    conn: &mut PgConnection,
    schema: &str,
    table: &str,
    columns: &[Column],
    rows: Vec<Values>,
) -> sqlx::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let arrays: Vec<String> = columns
        .iter()
        .enumerate()
        .map(|(at, (_, kind))| format!("${}::{}[]", at + 1, sql_type(*kind)))
        .collect();
    // The database numbers the streams itself, except for these.
    let given = if table == "stream" { "OVERRIDING SYSTEM VALUE " } else { "" };
    let sql = format!(
        "INSERT INTO {schema}.{table} ({}) {given}SELECT * FROM unnest({})",
        names.join(", "),
        arrays.join(", ")
    );
    let count = rows.len();
    let mut cells: Vec<Vec<Value>> = columns.iter().map(|_| Vec::with_capacity(count)).collect();
    for row in rows {
        for (cells, value) in cells.iter_mut().zip(row) {
            cells.push(value);
        }
    }
    let mut query = sqlx::query(AssertSqlSafe(sql));
    for ((_, kind), cells) in columns.iter().zip(cells) {
        query = bind(query, *kind, cells);
    }
    query.execute(conn).await.map(drop)
}

/// Binds a column. All values were checked to be of its kind.
fn bind<'q>(
    query: Query<'q, Postgres, PgArguments>,
    kind: Kind,
    cells: Vec<Value>,
) -> Query<'q, Postgres, PgArguments> {
    let cells = cells.into_iter();
    match kind {
        Kind::Number => query.bind(
            cells
                .map(|value| if let Value::Integer(number) = value { Some(number) } else { None })
                .collect::<Vec<_>>(),
        ),
        Kind::Text => query.bind(
            cells
                .map(|value| if let Value::Text(text) = value { Some(text) } else { None })
                .collect::<Vec<_>>(),
        ),
        Kind::Bytes => query.bind(
            cells
                .map(|value| if let Value::Bytes(bytes) = value { Some(bytes) } else { None })
                .collect::<Vec<_>>(),
        ),
    }
}

/// Records the progress of a table.
pub(super) async fn cursor(
    conn: &mut PgConnection,
    schema: &str,
    table: &Table,
    cursor: &str,
) -> sqlx::Result<()> {
    let sql = format!(
        "INSERT INTO {schema}.moving_table (name, cursor) VALUES ($1, $2) \
         ON CONFLICT (name) DO UPDATE SET cursor = EXCLUDED.cursor"
    );
    sqlx::query(AssertSqlSafe(sql)).bind(table.name).bind(cursor).execute(conn).await.map(drop)
}
