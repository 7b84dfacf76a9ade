//! Errors of a window, and what to do about them.

use redrive_core::Moment;
use redrive_core::window::{CommitRefused, WindowFull};

use crate::error::StoreError;

/// Why a claim was not answered. An error never means "first time": leave the message where it is, and ask again
/// later.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum WindowClaimError {
    /// Claims that have not run out fill the whole window.
    #[error(transparent)]
    Full(#[from] WindowFull),
    /// The file could not be written just now, or can no longer be trusted.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl WindowClaimError {
    /// Whether the same call may work later, with this window still open.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Full(_) => true,
            Self::Store(error) => error.is_transient(),
        }
    }
}

/// Why a commit was not written. The effect happened all the same.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum WindowCommitError {
    /// The claim ran out, and another caller has it now.
    #[error(
        "the claim ran out and another caller has the id; its effect may happen twice: make `claim` longer than \
         effects take"
    )]
    Taken {
        /// When the other claim runs out.
        until: Moment,
    },
    /// The claim ran out, and another caller committed it meanwhile.
    #[error(
        "the claim ran out and another caller committed the id; its effect may have happened twice: make `claim` \
         longer than effects take"
    )]
    Already {
        /// When that was committed.
        since: Moment,
    },
    /// The claim ran out, and other claims took its room.
    #[error(transparent)]
    Full(#[from] WindowFull),
    /// The file failed, and the outcome of the write is unknown.
    #[error(
        "the commit failed ({what}) and may or may not be on the disk; the window is closed, open it again: if it \
         is not, the id may run once more"
    )]
    Unknown {
        /// What failed.
        what: String,
    },
    /// It was not written, because the file failed.
    #[error(transparent)]
    Store(StoreError),
}

impl WindowCommitError {
    /// Whether the same ticket may be committed later, with this window still open.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Full(_) => true,
            Self::Store(error) => error.is_transient(),
            _ => false,
        }
    }
}

impl From<StoreError> for WindowCommitError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unknown { what } => Self::Unknown { what },
            error => Self::Store(error),
        }
    }
}

impl From<CommitRefused> for WindowCommitError {
    fn from(refused: CommitRefused) -> Self {
        match refused {
            CommitRefused::Taken { until } => Self::Taken { until },
            CommitRefused::Already { since } => Self::Already { since },
            CommitRefused::Full(full) => Self::Full(full),
            // Core's enum may grow.
            other => Self::Store(StoreError::Broken { what: other.to_string(), source: None }),
        }
    }
}
