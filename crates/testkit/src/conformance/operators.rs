//! Promises about what operators see and do.

pub(in crate::conformance) mod audits;
pub(in crate::conformance) mod desk;
pub(in crate::conformance) mod editing;
pub(in crate::conformance) mod failing;
pub(in crate::conformance) mod groups;
pub(in crate::conformance) mod jobs;
pub(in crate::conformance) mod keeping;
pub(in crate::conformance) mod orders;
pub(in crate::conformance) mod parking;
pub(in crate::conformance) mod redrives;
pub(in crate::conformance) mod rules;
