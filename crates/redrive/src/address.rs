//! Where a store or a window is, in words: `memory:` or `sqlite:FILE`.

use redrive_store::StoreError;

/// What an address means.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// In this process.
    Memory,
    /// In a SQLite file.
    #[cfg(feature = "sqlite")]
    Sqlite(std::path::PathBuf),
}

impl Address {
    /// Reads an address.
    ///
    /// # Errors
    /// With what is wrong with it.
    pub(crate) fn parse(address: &str) -> Result<Self, StoreError> {
        let cannot = |why: &str| StoreError::Open { path: address.into(), why: why.to_owned(), source: None };
        match address.split_once(':').unwrap_or((address, "")) {
            ("memory", _) => Ok(Self::Memory),
            ("sqlite", "" | "//") => Err(cannot("it names no file; write `sqlite:orders.db`")),
            ("sqlite", ":memory:") => Err(cannot("a database in memory keeps nothing; use `memory:`")),
            ("sqlite", path) if path.contains('?') => {
                Err(cannot("an address has no `?…`; settings are given beside it"))
            }
            #[cfg(feature = "sqlite")]
            ("sqlite", path) => Ok(Self::Sqlite(path.trim_start_matches("//").into())),
            #[cfg(not(feature = "sqlite"))]
            ("sqlite", _) => Err(cannot("this program was built without the feature `sqlite` of redrive")),
            _ => Err(cannot("there is no such store; use `sqlite:FILE` or `memory:`")),
        }
    }
}
