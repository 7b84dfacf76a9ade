//! The caller's own statements, with plain values.
//!
//! A value has its Rust type: an integer is a `bigint`, which PostgreSQL narrows to the column's type. NULL has no
//! type, so that it fits everywhere. A result that is neither a number, a boolean, text nor bytes has to be cast in
//! the statement.

use std::sync::Arc;

use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgArgumentBuffer, PgArguments, PgRow, PgTypeInfo};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Column, Encode, Postgres, Row as _, Type, TypeInfo, ValueRef};

use crate::sql::{SqlError, SqlRow, Value};

/// NULL, of any type.
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
pub(in crate::stores::postgres) fn query(
    statement: &str,
    values: &[Value],
) -> Query<'static, Postgres, PgArguments> {
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
pub(in crate::stores::postgres) fn row(row: &PgRow) -> Result<SqlRow, SqlError> {
    let values = (0..row.columns().len()).map(|at| value(row, at));
    values.collect::<sqlx::Result<_>>().map(SqlRow::new).map_err(refused)
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

/// The error: the database refused a statement.
pub(in crate::stores::postgres) fn refused(error: sqlx::Error) -> SqlError {
    SqlError::Statement(Arc::new(error))
}
