//! Why something cannot be signed, or cannot be done with a secret.

use std::path::PathBuf;

use redrive::engine::TransactError;

use super::{FRESH, SECRETS_MAX};

/// Why nothing can be signed with a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SigningGap {
    /// There is no such secret.
    Unknown,
    /// It is there, and no key opens it: they are of another store, or were changed without the old one beside.
    Locked,
    /// The store could not be asked for too long: another node may have revoked it.
    Stale,
}

impl SigningGap {
    /// The message for a secret of this name, with advice.
    #[must_use]
    pub fn told(self, name: &str) -> String {
        match self {
            Self::Unknown => {
                format!("there is no secret `{name}`; set it with `redrive secret set {name}`")
            }
            Self::Locked => format!(
                "the key does not open the secret `{name}`; set secrets.key_file or secrets.old_key_file to the key that locked it, or replace it with `redrive secret set {name}`"
            ),
            Self::Stale => format!(
                "the store did not confirm the secret `{name}` for {} s; nothing is signed until it does",
                FRESH.as_secs()
            ),
        }
    }
}

/// Why something cannot be done with a secret. Never with the secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// There is no key to encrypt it with.
    #[error(
        "no key to lock secrets with; create one with `redrive secret key FILE` and set secrets.key_file"
    )]
    NoKey,
    /// The key cannot be read or made.
    #[error("{}: {why}", path.display())]
    KeyFile {
        /// Which.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// There is no such secret.
    #[error("there is no secret `{0}`")]
    Unknown(String),
    /// It cannot have that name.
    #[error("{0}")]
    Name(String),
    /// The value is invalid.
    #[error("a secret must be 24 to 64 bytes in base64, with `whsec_` before it or without")]
    Value,
    /// There are too many.
    #[error("there are {SECRETS_MAX} secrets already; remove one first")]
    TooMany,
    /// The system gave no random bytes, or a cipher failed for want of memory.
    #[error("the system gave no random bytes")]
    Chance,
    /// The keys form no valid key ring.
    #[error("ledger.key_files: {0}")]
    Ring(redrive::http::seal::KeyRingError),
    /// The store could not.
    #[error(transparent)]
    Store(TransactError),
}

impl From<TransactError> for SecretError {
    fn from(error: TransactError) -> Self {
        match error {
            TransactError::Work(error) => match error.downcast::<Self>() {
                Ok(error) => *error,
                Err(error) => Self::Store(TransactError::Work(error)),
            },
            error => Self::Store(error),
        }
    }
}
