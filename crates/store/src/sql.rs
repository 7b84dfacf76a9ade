//! The caller's own statements, portable over every SQL store.
//!
//! Work that runs on SQLite today and on PostgreSQL tomorrow writes its statements with `$1`, `$2` for its values, and
//! gets rows of plain [`Value`]s. Work that needs all features of one database uses its connection instead.

use crate::error::StoreErrorSource;

/// A value that goes into a statement, or comes out of a row.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// NULL.
    Null,
    /// An integer; a boolean is 0 or 1.
    Integer(i64),
    /// A floating-point number.
    Real(f64),
    /// A text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
}

macro_rules! from {
    ($($of:ty => $make:expr),+ $(,)?) => {$(
        impl From<$of> for Value {
            fn from(value: $of) -> Self {
                $make(value)
            }
        }
    )+};
}

from! {
    i64 => Self::Integer,
    i32 => |value| Self::Integer(i64::from(value)),
    u32 => |value| Self::Integer(i64::from(value)),
    bool => |value| Self::Integer(i64::from(value)),
    f64 => Self::Real,
    String => Self::Text,
    &str => |value: &str| Self::Text(value.to_owned()),
    &String => |value: &String| Self::Text(value.clone()),
    Vec<u8> => Self::Bytes,
    &[u8] => |value: &[u8]| Self::Bytes(value.to_vec()),
}

impl<T: Into<Self>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

impl Value {
    /// Its name in messages.
    const fn kind(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Integer(_) => "a whole number",
            Self::Real(_) => "a number",
            Self::Text(_) => "a text",
            Self::Bytes(_) => "bytes",
        }
    }
}

/// A type that a column converts into.
pub trait FromValue: Sized {
    /// Its name in messages.
    const KIND: &'static str;

    /// The value, if it has this type.
    fn from_value(value: &Value) -> Option<Self>;
}

macro_rules! out {
    ($($of:ty, $kind:literal, $is:pat => $give:expr);+ $(;)?) => {$(
        impl FromValue for $of {
            const KIND: &'static str = $kind;

            fn from_value(value: &Value) -> Option<Self> {
                match value {
                    $is => $give,
                    _ => None,
                }
            }
        }
    )+};
}

out! {
    i64, "a whole number", Value::Integer(number) => Some(*number);
    bool, "true or false", Value::Integer(number @ (0 | 1)) => Some(*number == 1);
    f64, "a number", Value::Real(number) => Some(*number);
    String, "a text", Value::Text(text) => Some(text.clone());
    Vec<u8>, "bytes", Value::Bytes(bytes) => Some(bytes.clone());
}

impl<T: FromValue> FromValue for Option<T> {
    const KIND: &'static str = T::KIND;

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Null => Some(None),
            value => T::from_value(value).map(Some),
        }
    }
}

/// A row of a result.
#[derive(Debug, Clone, PartialEq)]
pub struct SqlRow(Vec<Value>);

impl SqlRow {
    #[cfg_attr(
        not(any(feature = "sqlite", feature = "postgres")),
        allow(dead_code, reason = "no store here has rows")
    )]
    pub(crate) const fn new(values: Vec<Value>) -> Self {
        Self(values)
    }

    /// The value of a column, counted from 0.
    ///
    /// # Errors
    /// If there is no such column, or it has another type.
    pub fn get<T: FromValue>(&self, column: usize) -> Result<T, SqlError> {
        let value = self.0.get(column).ok_or(SqlError::Column { column, columns: self.0.len() })?;
        T::from_value(value).ok_or(SqlError::Kind { column, is: value.kind(), wanted: T::KIND })
    }
}

/// Why a statement of the caller's own failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SqlError {
    /// The database refused the statement.
    #[error("the statement failed: {0}")]
    Statement(#[source] StoreErrorSource),
    /// There is no such column.
    #[error("the row has {columns} columns; there is no column {column}, counting from 0")]
    Column {
        /// The requested column.
        column: usize,
        /// How many columns there are.
        columns: usize,
    },
    /// The column has another type.
    #[error("column {column} is {is}, not {wanted}")]
    Kind {
        /// The column.
        column: usize,
        /// Its type.
        is: &'static str,
        /// The requested type.
        wanted: &'static str,
    },
    /// The store has no SQL.
    #[error("this store has no SQL; open a file or a database")]
    None,
}
