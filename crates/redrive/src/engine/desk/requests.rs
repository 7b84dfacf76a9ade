//! Requests under idempotency keys, as operators see them: looking one up, listing those whose outcome is unknown,
//! and saying how one was.

use redrive_core::ledger::{Record, Reply, Resolution, Scope};
use redrive_core::triage::rule::check_words;
use redrive_store::StoreError;
use redrive_store::ledger::{Recorded, Records};
use redrive_store::operate::{Refusal, What};

use super::{Desk, DeskError};
use crate::Redrive;

/// How many bytes the name of a tenant or of an operation has, at most, that an operator gives.
const NAME_MAX: usize = 1024;
/// How many headers an answer has, at most, that an operator gives.
const HEADERS_MAX: usize = 100;
/// How many bytes an answer has, at most, that an operator gives.
const REPLY_MAX: usize = 1 << 20;

impl Redrive {
    /// How many requests wait for a person because their outcome is unknown, by operation.
    ///
    /// # Errors
    /// Where the store cannot be read.
    pub async fn unknown_outcomes(&self) -> Result<Vec<(String, u64)>, StoreError> {
        self.store().unknown().await
    }
}

impl Desk {
    /// What is remembered of a request.
    ///
    /// # Errors
    /// Where the store cannot be read.
    pub async fn request(&self, scope: Scope) -> Result<Option<Record>, StoreError> {
        self.redrive.store().record(scope, self.now()).await
    }

    /// A page of requests: of a tenant, in a phase, by what they made.
    ///
    /// # Errors
    /// Where the store cannot be read.
    pub async fn requests(&self, records: Records) -> Result<Recorded, StoreError> {
        self.redrive.store().records(records, self.now()).await
    }

    /// Says how a request was whose outcome is unknown: it happened, and this is its answer from now on; or it did
    /// not, and the next one runs. A word of the run itself that comes later counts no more. `why` is for whoever
    /// reads the audit.
    ///
    /// # Errors
    /// Where there is none, or it is not unknown; where the answer cannot be given; where the store could not.
    pub async fn resolve(&self, scope: Scope, resolution: Resolution, why: &str) -> Result<(), DeskError> {
        check_words(why).map_err(Refusal::Senseless)?;
        check_scope(&scope).map_err(Refusal::Senseless)?;
        if let Resolution::Completed(reply) = &resolution {
            check_reply(reply).map_err(Refusal::Senseless)?;
        }
        self.one(What::Resolve { scope, resolution, why: why.to_owned() }).await.map(drop)
    }
}

/// What is refused has a line in the audit, too, so that names are bounded here.
fn check_scope(Scope { tenant, operation, key }: &Scope) -> Result<(), String> {
    for (what, name, most) in
        [("a tenant", tenant, NAME_MAX), ("an operation", operation, NAME_MAX), ("a key", key, 255)]
    {
        if name.len() > most || name.chars().any(char::is_control) {
            return Err(format!("{what} has at most {most} bytes, and no letters that cannot be shown"));
        }
    }
    Ok(())
}

/// Whether an answer can be given.
fn check_reply(reply: &Reply) -> Result<(), String> {
    if !(200..600).contains(&reply.status) {
        return Err(format!("an answer has a status from 200 to 599, and not {}", reply.status));
    }
    if reply.headers.len() > HEADERS_MAX {
        return Err(format!("an answer has {HEADERS_MAX} headers at most"));
    }
    let headers: usize = reply.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    if headers + reply.body.as_ref().map_or(0, Vec::len) > REPLY_MAX {
        return Err(format!("an answer that is given here has {REPLY_MAX} bytes at most"));
    }
    Ok(())
}
