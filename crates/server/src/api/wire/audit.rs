//! The audit log, as JSON.

use serde::{Deserialize, Serialize};

/// A page of the audit log: the response of `GET /v1/audit`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditPageJson {
    /// The lines, latest first.
    pub lines: Vec<AuditLineJson>,
    /// The `before` of the next page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// A line of the audit log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditLineJson {
    /// Its number.
    pub number: u64,
    /// When.
    pub at: String,
    /// The token's name, or the user's.
    pub who: String,
    /// The address or program of the caller.
    pub from: String,
    /// The action.
    pub verb: String,
    /// What it was applied to.
    pub target: String,
    /// How many events it changed.
    pub count: u64,
    /// The reason or a remark.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}
