//! The caller's own statements, with plain values.
//!
//! A value has the type that it has in Rust: a whole number is a `bigint`, which PostgreSQL makes smaller where a column
//! is. Nothing has no type, so that it fits wherever it is put. What comes back and is neither a number, truth, text nor
//! bytes is to be cast in the statement.

use std::sync::Arc;

use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgArgumentBuffer, PgArguments, PgRow, PgTypeInfo};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Column, Encode, Postgres, Row as _, Type, TypeInfo, ValueRef};

use crate::sql::{Row, SqlError, Value};

/// Nothing, of whatever type is wanted.
struct Nothing;

impl Type<Postgres> for Nothing {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(0))
    }
}

impl Encode<'_, Postgres> for Nothing {
    fn encode_by_ref(&self, _: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        Ok(IsNull::Yes)
    }
}

/// A statement with its values.
pub(super) fn query(statement: &str, values: &[Value]) -> Query<'static, Postgres, PgArguments> {
    // It is the caller's own, in the caller's own transaction.
    let query = sqlx::query(AssertSqlSafe(statement.to_owned()));
    values.iter().fold(query, |query, value| match value {
        Value::Null => query.bind(Nothing),
        Value::Integer(number) => query.bind(*number),
        Value::Real(number) => query.bind(*number),
        Value::Text(text) => query.bind(text.clone()),
        Value::Bytes(bytes) => query.bind(bytes.clone()),
    })
}

/// A row of plain values.
pub(super) fn row(row: &PgRow) -> Result<Row, SqlError> {
    let values = (0..row.columns().len()).map(|at| value(row, at));
    values.collect::<sqlx::Result<_>>().map(Row::new).map_err(refused)
}

fn value(row: &PgRow, at: usize) -> sqlx::Result<Value> {
    if row.try_get_raw(at)?.is_null() {
        return Ok(Value::Null);
    }
    Ok(match row.column(at).type_info().name() {
        "BOOL" => Value::Integer(i64::from(row.try_get::<bool, _>(at)?)),
        "INT2" => Value::Integer(i64::from(row.try_get::<i16, _>(at)?)),
        "INT4" => Value::Integer(i64::from(row.try_get::<i32, _>(at)?)),
        "INT8" => Value::Integer(row.try_get(at)?),
        "FLOAT4" => Value::Real(f64::from(row.try_get::<f32, _>(at)?)),
        "FLOAT8" => Value::Real(row.try_get(at)?),
        "BYTEA" => Value::Bytes(row.try_get(at)?),
        _ => Value::Text(row.try_get(at)?),
    })
}

/// That the database refused a statement.
pub(super) fn refused(error: sqlx::Error) -> SqlError {
    SqlError::Statement(Arc::new(error))
}
