//! The operators' desk, its words in one place. The guide is docs/desk.md.
//!
//! A [`Desk`] is made by [`Redrive::desk`](crate::Redrive::desk).

#[doc(no_inline)]
pub use redrive_core::entry::Seq;
#[doc(no_inline)]
pub use redrive_core::ledger::{Phase, Record, Reply, Resolution, Scope};
#[doc(no_inline)]
pub use redrive_core::triage::{
    CauseId, Control, Controls, Filter, Job, JobAct, JobId, JobPlan, JobState, Redrive as How, Rule, Strategy,
};
#[doc(no_inline)]
pub use redrive_store::ledger::{Recorded, Records};
#[doc(no_inline)]
pub use redrive_store::operate::{
    AuditLine, Group, GroupBy, GroupQuery, Operated, Redriven, Refusal, Target,
};

#[doc(no_inline)]
pub use crate::engine::desk::{
    Desk, DeskError, Edit, EditDone, ExchangeError, Exported, Imported, Plan, Shown,
};
