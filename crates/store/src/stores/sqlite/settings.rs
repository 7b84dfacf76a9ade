//! How a file is opened, and whether to own it.

/// How a file is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// Below how many free bytes on the disk publishing stops, so that settling can go on. Default: 64 MiB.
    pub disk_least: u64,
    /// Whether to own the file from the start. Default: not before [`Store::take`](crate::Store::take).
    pub role: Role,
}

impl Default for Settings {
    fn default() -> Self {
        Self { disk_least: 64 << 20, role: Role::Any }
    }
}

/// Whether to own a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Role {
    /// Not before [`Store::take`](crate::Store::take); but what an unclean stop left behind is put in order now, if nobody does.
    #[default]
    Any,
    /// From now on. It is an error if somebody else does.
    Owner,
    /// No: to publish and look alone. Whoever takes the file becomes its owner all the same.
    Guest,
}
