//! The address of a store or a window: `memory:`, `sqlite:FILE` or `postgres://…`.

use redrive_store::StoreError;

/// A parsed address.
#[derive(PartialEq, Eq)]
pub(crate) enum Address {
    /// In this process.
    Memory,
    /// In a SQLite file.
    #[cfg(feature = "sqlite")]
    Sqlite(std::path::PathBuf),
    /// In a PostgreSQL database: its URL, which may contain a password.
    #[cfg(feature = "postgres")]
    Postgres(String),
}

impl Address {
    /// Parses an address.
    ///
    /// # Errors
    /// If it is malformed. The error does not repeat an address that may contain a password.
    pub(crate) fn parse(address: &str) -> Result<Self, StoreError> {
        let open =
            |path: &str, why: &str| StoreError::Open { path: path.into(), why: why.to_owned(), source: None };
        let cannot = |why: &str| open(address, why);
        match address.split_once(':').unwrap_or((address, "")) {
            ("memory", _) => Ok(Self::Memory),
            ("sqlite", "" | "//") => Err(cannot("it names no file; write `sqlite:orders.db`")),
            ("sqlite", ":memory:") => Err(cannot("a SQLite database in memory keeps nothing; use `memory:`")),
            ("sqlite", path) if path.contains('?') => {
                Err(cannot("an address must not contain `?…`; pass settings separately"))
            }
            #[cfg(feature = "sqlite")]
            ("sqlite", path) => Ok(Self::Sqlite(path.trim_start_matches("//").into())),
            #[cfg(not(feature = "sqlite"))]
            ("sqlite", _) => Err(cannot("this program was built without the feature `sqlite` of redrive")),
            ("postgres" | "postgresql", rest) if !rest.starts_with("//") => {
                Err(open("the database", "its address begins with `postgres://`"))
            }
            #[cfg(feature = "postgres")]
            ("postgres" | "postgresql", _) => Ok(Self::Postgres(address.to_owned())),
            #[cfg(not(feature = "postgres"))]
            ("postgres" | "postgresql", _) => {
                Err(open("the database", "this program was built without the feature `postgres` of redrive"))
            }
            _ => Err(open(
                &shown(address),
                "there is no such store; use `sqlite:FILE`, `postgres://…` or `memory:`",
            )),
        }
    }
}

/// Why a window cannot live in a database.
#[cfg(feature = "postgres")]
pub(crate) fn no_window() -> StoreError {
    let why = "a window is in memory or in a SQLite file; with a database, use the inbox".to_owned();
    StoreError::Open { path: "the database".into(), why, source: None }
}

/// An address as it may be shown, without its secrets. Of a database it shows the user, the host and the database; the
/// rest of the URL is left out, because passwords may be in many places of it.
#[must_use]
pub fn shown(address: &str) -> String {
    let Some((scheme, rest)) = address.split_once(':') else { return address.to_owned() };
    let is_database = matches!(scheme, "postgres" | "postgresql");
    // A misspelt database URL has its password at the same place.
    if matches!(scheme, "sqlite" | "memory") || !(is_database || rest.starts_with("//") || rest.contains('@'))
    {
        return address.to_owned();
    }
    let place = rest.strip_prefix("//").and_then(place_in);
    place.map_or_else(|| format!("{scheme}://…"), |place| format!("{scheme}://{place}"))
}

/// User, host and database if the URL is well-formed: a password that contains `/` or `@` could be taken for a host.
fn place_in(rest: &str) -> Option<String> {
    let rest = rest.split(['?', '#']).next()?;
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (user, host) = authority.split_once('@').unwrap_or(("", authority));
    let user = user.split(':').next()?;
    let plain = |text: &str, more: &str| {
        text.chars()
            .all(|letter| letter.is_ascii_alphanumeric() || "._-%".contains(letter) || more.contains(letter))
    };
    let is_port = |port: &str| port.is_empty() || port.parse::<u16>().is_ok();
    let port_at = host.rfind(':').filter(|at| !host[*at..].contains(']'));
    if !plain(user, "")
        || !plain(host, "[]:")
        || !plain(path, "")
        || !port_at.is_none_or(|at| is_port(&host[at + 1..]))
    {
        return None;
    }
    let user = if user.is_empty() { String::new() } else { format!("{user}@") };
    let path = if path.is_empty() { String::new() } else { format!("/{path}") };
    Some(format!("{user}{host}{path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_is_shown() {
        for (address, expected) in [
            ("sqlite:orders.db", "sqlite:orders.db"),
            ("memory:", "memory:"),
            ("postgres://", "postgres://"),
            ("postgres://localhost/shop", "postgres://localhost/shop"),
            ("postgres://ann:secret@db:5433/shop?sslmode=require", "postgres://ann@db:5433/shop"),
            ("postgresql://ann@[::1]:5433/shop", "postgresql://ann@[::1]:5433/shop"),
            ("postgres://db/shop?password=secret", "postgres://db/shop"),
            ("postgres://ann:sec/ret@db/shop", "postgres://…"),
            ("postgres://ann:sec@ret@db/shop", "postgres://…"),
            ("postgres://ann:secret", "postgres://…"),
            ("postgres:ann:secret@db", "postgres://…"),
            ("postgress://ann:secret@db/shop", "postgress://ann@db/shop"),
            ("pg:ann:secret@db/shop", "pg://…"),
            ("orders.db", "orders.db"),
        ] {
            assert_eq!(shown(address), expected);
        }
        assert!(!shown("postgres://ann:sec?ret@db/shop").contains("sec"));
        assert!(!shown("postgres://ann:sec#ret@db/shop").contains("sec"));
    }
}
