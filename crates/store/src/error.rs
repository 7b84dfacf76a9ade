//! Errors of a store, and what to do about them.

use std::path::PathBuf;
use std::sync::Arc;

use redrive_core::event::EventError;

/// Why a store operation failed. Cheap to clone: every caller in a group commit gets the same error.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Nothing was changed, and the cause may pass.
    #[error("{what}; nothing was changed; try again")]
    Passing {
        /// The obstacle: the disk is full, the database is busy.
        what: String,
        /// The cause.
        #[source]
        source: Option<StoreErrorSource>,
    },
    /// The disk is nearly full. Publishing stops early, so that there is room to settle.
    #[error(
        "only {free} bytes are free on the store's disk, and publishing stops below {least}; free some space, and publishing resumes by itself"
    )]
    DiskLow {
        /// Free bytes.
        free: u64,
        /// The bytes that publishing needs.
        least: u64,
    },
    /// A commit failed, and its outcome is unknown.
    #[error(
        "the commit failed ({what}) and may or may not have happened; the store is closed, open it again and \
         publish the same id to find out"
    )]
    Unknown {
        /// What failed.
        what: String,
    },
    /// The database answered neither a commit nor the calls that asked about it. The store goes on.
    #[error(
        "the database did not answer a commit ({what}), which may or may not have happened; repeat the call to find out"
    )]
    Unanswered {
        /// What went wrong.
        what: String,
    },
    /// An earlier commit failed, and the store can no longer be trusted.
    #[error("the store stopped after a failed commit ({what}); open it again")]
    Poisoned {
        /// What failed.
        what: String,
    },
    /// Another process owns the store.
    #[error(
        "{} is owned by another process{}; this one can publish and read, but not run handlers",
        path.display(),
        pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
    )]
    NotOwner {
        /// The file.
        path: PathBuf,
        /// The owner's process id, if known.
        pid: Option<u32>,
    },
    /// A row does not have the checksum it was written with.
    #[error("{row} is damaged: its checksum does not match; restore it from a backup")]
    Damaged {
        /// The row's table and number.
        row: String,
    },
    /// The store cannot be opened, and why.
    #[error("cannot open {}: {why}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why, and what to do.
        why: String,
        /// The cause.
        #[source]
        source: Option<StoreErrorSource>,
    },
    /// The file was written by a newer Redrive.
    #[error("{} has schema {found}, and this program knows up to {known}; use a newer one", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// The schema version of the file.
        found: u32,
        /// The newest version that this program knows.
        known: u32,
    },
    /// The transaction is not in the store's database.
    #[error("the transaction is not in the database of the store: {why}")]
    Elsewhere {
        /// Where it is, and what to do.
        why: String,
    },
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
    /// An internal error: a state that should not be possible.
    #[error("{what}")]
    Broken {
        /// What is wrong.
        what: String,
        /// The cause.
        #[source]
        source: Option<StoreErrorSource>,
    },
}

/// The cause of a store's error.
pub type StoreErrorSource = Arc<dyn std::error::Error + Send + Sync>;

impl StoreError {
    /// Whether the same call may work later, with this store still open.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Passing { .. } | Self::DiskLow { .. } | Self::Unanswered { .. })
    }

    /// Whether it is certain that nothing was changed.
    #[must_use]
    pub const fn is_definite(&self) -> bool {
        !matches!(self, Self::Unknown { .. } | Self::Unanswered { .. })
    }
}

/// Why an event was not published.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The event is invalid.
    #[error(transparent)]
    Event(#[from] EventError),
    /// The same identity with another payload.
    #[error(
        "the id `{id}` of queue `{queue}` was published before with another payload; one intent, one id: mint \
         a new one for a new intent"
    )]
    IdReused {
        /// The queue.
        queue: String,
        /// The id.
        id: String,
    },
    /// The queue is not declared.
    #[error("there is no queue `{queue}`; {}; declare it before publishing", say_known(known))]
    NoQueue {
        /// The name.
        queue: String,
        /// The declared queues.
        known: Vec<String>,
    },
    /// The event's own policy may retry for longer than the queue remembers identities.
    #[error(
        "the event's own policy outlasts the dedupe window of {window:?}: {sum}; shorten it or widen the window"
    )]
    Window {
        /// The queue's window.
        window: std::time::Duration,
        /// How the sum is made up.
        sum: String,
    },
    /// A handler's name without a version.
    #[error(
        "`{name}` has no version; write it as `projector.v1`, and raise the version when the effect changes"
    )]
    Handler {
        /// The name.
        name: String,
    },
    /// It was published inside the body of a transaction, but not in the transaction.
    #[error(
        "a plain publish inside the body of a transaction happens once a run of the body, also if it never commits;          publish in the transaction instead (the outbox: `tx.publish`, `publish_in`), or after the commit"
    )]
    InTransaction,
    /// The store operation failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn say_known(known: &[String]) -> String {
    if known.is_empty() { "none is known".to_owned() } else { format!("known are: {}", known.join(", ")) }
}

impl PublishError {
    /// Whether the same call may work later.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_transient())
    }
}
