//! What can go wrong with a window, and what to do about it.

use redrive_core::Moment;
use redrive_core::window::{Full, Refused};

use crate::error::StoreError;

/// Why a claim was not answered. It is never "first time": ask again later, and leave the message where it is.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// Everything that fits is claims that last.
    #[error(transparent)]
    Full(#[from] Full),
    /// The file could not be written to just now, or is no longer to be trusted.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl ClaimError {
    /// Whether the same call may work later, with this window still open.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Full(_) => true,
            Self::Store(error) => error.is_transient(),
        }
    }
}

/// Why a commit was not written down. The effect happened all the same.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// The claim ran out, and somebody else is at it now.
    #[error(
        "the claim ran out and somebody else has the id; its effect may happen twice: make `claim` longer than \
         effects take"
    )]
    Taken {
        /// When theirs runs out.
        until: Moment,
    },
    /// The claim ran out, and somebody else dealt with it meanwhile.
    #[error(
        "the claim ran out and somebody else committed the id; its effect may have happened twice: make `claim` \
         longer than effects take"
    )]
    Already {
        /// When they did.
        since: Moment,
    },
    /// The claim ran out, and its place was taken by other claims.
    #[error(transparent)]
    Full(#[from] Full),
    /// The file failed in a way that leaves open whether it was written.
    #[error(
        "the commit failed ({what}) and may or may not be on the disk; the window is closed, open it again: if it \
         is not, the id may run once more"
    )]
    Unknown {
        /// What failed.
        what: String,
    },
    /// It was not written, for a reason of the file's.
    #[error(transparent)]
    Store(StoreError),
}

impl CommitError {
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

impl From<StoreError> for CommitError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unknown { what } => Self::Unknown { what },
            error => Self::Store(error),
        }
    }
}

impl From<Refused> for CommitError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Taken { until } => Self::Taken { until },
            Refused::Already { since } => Self::Already { since },
            Refused::Full(full) => Self::Full(full),
            // Core's enum may grow.
            other => Self::Store(StoreError::Broken { what: other.to_string(), source: None }),
        }
    }
}
