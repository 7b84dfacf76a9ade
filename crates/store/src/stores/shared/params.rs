//! The values of a row as a statement takes them: each table names and orders them once, for both databases.

use crate::sql::Value;

/// A value for a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::stores) enum Param<'a> {
    Number(Option<i64>),
    Text(Option<&'a str>),
    Bytes(Option<&'a [u8]>),
}

impl From<i64> for Param<'_> {
    fn from(number: i64) -> Self {
        Self::Number(Some(number))
    }
}

impl From<Option<i64>> for Param<'_> {
    fn from(number: Option<i64>) -> Self {
        Self::Number(number)
    }
}

impl<'a> From<&'a str> for Param<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(Some(text))
    }
}

impl<'a> From<Option<&'a str>> for Param<'a> {
    fn from(text: Option<&'a str>) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a [u8]> for Param<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Bytes(Some(bytes))
    }
}

impl<'a> From<Option<&'a [u8]>> for Param<'a> {
    fn from(bytes: Option<&'a [u8]>) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<Param<'_>> for Value {
    fn from(param: Param<'_>) -> Self {
        match param {
            Param::Number(number) => number.into(),
            Param::Text(text) => text.into(),
            Param::Bytes(bytes) => bytes.map(<[u8]>::to_vec).into(),
        }
    }
}

/// `?10, ?11, …` or `$10, $11, …`: parameters for these columns, the first of them with this number.
pub(in crate::stores) fn placeholders(columns: &str, sigil: char, first: usize) -> String {
    let numbered = columns.split(", ").enumerate().map(|(at, _)| format!("{sigil}{}", first + at));
    numbered.collect::<Vec<_>>().join(", ")
}

/// `rev = ?10, state = ?11, …`: assigns these columns, the first of them from the parameter with this number.
pub(in crate::stores) fn assignments(columns: &str, sigil: char, first: usize) -> String {
    let assigned =
        columns.split(", ").enumerate().map(|(at, name)| format!("{name} = {sigil}{}", first + at));
    assigned.collect::<Vec<_>>().join(", ")
}

/// The columns behind the first `key`: an upsert does not assign the columns it found its row by.
pub(in crate::stores) fn behind_key(columns: &str, key: usize) -> &str {
    columns.splitn(key + 1, ", ").last().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_numbered_from_the_first_on() {
        assert_eq!(placeholders("a, b, c", '?', 10), "?10, ?11, ?12");
        assert_eq!(assignments("a, b", '$', 3), "a = $3, b = $4");
        assert_eq!(behind_key("a, b, c, d", 2), "c, d");
    }
}
