//! One call through its attempts: from an error to a disposition, a wait, and the report of how it ended.

pub mod backoff;
pub mod classify;
pub mod disposition;
pub mod jitter;
pub mod observe;
pub mod report;
pub mod run;
