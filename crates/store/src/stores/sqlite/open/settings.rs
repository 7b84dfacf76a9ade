//! How a file is opened, and whether to own it.

/// How a file is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SqliteSettings {
    /// The free bytes on the disk that publishing needs; below, it stops, so that settling can go on. Default: 64 MiB.
    pub disk_least: u64,
    /// Whether to own the file from the start. Default: not before [`ShardStore::take`](crate::ShardStore::take).
    pub role: FileRole,
}

impl Default for SqliteSettings {
    fn default() -> Self {
        Self { disk_least: 64 << 20, role: FileRole::Any }
    }
}

/// Whether to own a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FileRole {
    /// Not before [`ShardStore::take`](crate::ShardStore::take); but if the file has no owner, it recovers now from an
    /// unclean stop.
    #[default]
    Any,
    /// From the start. It is an error if another process owns it.
    Owner,
    /// No: only publish and read. A call to `take` makes it the owner all the same.
    Guest,
}
