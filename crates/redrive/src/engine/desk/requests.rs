//! Requests under idempotency keys, for operators: looking one up, listing requests of unknown outcome, and resolving
//! them.

use std::collections::BTreeMap;

use redrive_core::ledger::{LedgerRecord, RequestScope, Resolution, StoredReply};
use redrive_core::triage::rule::check_words;
use redrive_store::StoreError;
use redrive_store::ledger::{LedgerPage, LedgerQuery, UnknownCount};
use redrive_store::operate::{OperatorAction, Refusal};

use super::{Desk, DeskError};
use crate::Redrive;

/// Bytes of a tenant's or an operation's name, at most, in an operator's command.
const NAME_MAX: usize = 1024;
/// Headers of an answer, at most, in an operator's command.
const HEADERS_MAX: usize = 100;
/// Bytes of an answer, at most, in an operator's command.
const REPLY_MAX: usize = 1 << 20;

impl Redrive {
    /// How many requests of unknown outcome wait for an operator, by operation.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn unknown_outcomes(&self) -> Result<Vec<(String, u64)>, StoreError> {
        self.unknown_by(|counted| counted.operation.clone()).await
    }

    /// The same by tenant.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn unknown_outcomes_by_tenant(&self) -> Result<Vec<(String, u64)>, StoreError> {
        self.unknown_by(|counted| counted.tenant.clone()).await
    }

    async fn unknown_by(&self, name: fn(&UnknownCount) -> String) -> Result<Vec<(String, u64)>, StoreError> {
        let mut counts = BTreeMap::new();
        for counted in self.store().unknown().await? {
            *counts.entry(name(&counted)).or_default() += counted.count;
        }
        Ok(counts.into_iter().collect())
    }
}

impl Desk {
    /// The ledger's record of a request.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn request(&self, scope: RequestScope) -> Result<Option<LedgerRecord>, StoreError> {
        self.redrive.store().record(scope, self.now()).await
    }

    /// A page of requests: of a tenant, in a phase, by what they made.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn requests(&self, records: LedgerQuery) -> Result<LedgerPage, StoreError> {
        self.redrive.store().records(records, self.now()).await
    }

    /// Resolves a request of unknown outcome: either it happened, and this is its answer from now on; or it did not,
    /// and the next request runs. An answer of the original run that comes later is refused. `why` goes into the
    /// audit.
    ///
    /// # Errors
    /// If there is no such request, or its outcome is known; if the answer is invalid; or if the store operation
    /// fails.
    pub async fn resolve(
        &self,
        scope: RequestScope,
        resolution: Resolution,
        why: &str,
    ) -> Result<(), DeskError> {
        check_words(why).map_err(Refusal::Senseless)?;
        check_scope(&scope).map_err(Refusal::Senseless)?;
        if let Resolution::Completed(reply) = &resolution {
            check_reply(reply).map_err(Refusal::Senseless)?;
        }
        self.one(OperatorAction::Resolve { scope, resolution, why: why.to_owned() }).await.map(drop)
    }
}

/// A refused command is audited as well, so names are bounded here.
fn check_scope(scope: &RequestScope) -> Result<(), String> {
    for (what, name, most) in [
        ("a tenant", scope.tenant.as_str(), NAME_MAX),
        ("an operation", &scope.operation, NAME_MAX),
        ("a key", scope.client_key(), 255),
        ("a principal", scope.principal().unwrap_or_default(), NAME_MAX),
    ] {
        if name.len() > most || name.chars().any(char::is_control) {
            return Err(format!("{what} must have at most {most} bytes and no control characters"));
        }
    }
    Ok(())
}

/// Whether an answer is valid.
fn check_reply(reply: &StoredReply) -> Result<(), String> {
    if !(200..600).contains(&reply.status) {
        return Err(format!("the status of an answer must be from 200 to 599, not {}", reply.status));
    }
    if reply.headers.len() > HEADERS_MAX {
        return Err(format!("an answer may have at most {HEADERS_MAX} headers"));
    }
    let headers: usize = reply.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    if headers + reply.body.as_ref().map_or(0, Vec::len) > REPLY_MAX {
        return Err(format!("an answer may have at most {REPLY_MAX} bytes"));
    }
    Ok(())
}
