//! The operators' desk, its types in one place. The guide is docs/operate/desk.md.
//!
//! A [`Desk`] is made by [`Redrive::desk`](crate::Redrive::desk).

#[doc(no_inline)]
pub use redrive_core::ledger::{LedgerRecord, RecordPhase, RequestScope, Resolution, StoredReply};
#[doc(no_inline)]
pub use redrive_core::queue_entry::Seq;
#[doc(no_inline)]
pub use redrive_core::triage::{
    ActiveRule, ActiveRules, CauseId, Filter, Job, JobAct, JobId, JobPlan, JobState, JobStrategy,
    RedriveOptions as How, Rule,
};
#[doc(no_inline)]
pub use redrive_store::ledger::{LedgerPage, LedgerQuery};
#[doc(no_inline)]
pub use redrive_store::operate::{
    AuditLine, CommandResult, EventRef, FailingGroup, FailingQuery, Group, GroupBy, GroupQuery, GroupRedrive,
    Refusal,
};

#[doc(no_inline)]
pub use crate::engine::desk::{
    Desk, DeskError, Edit, EditResult, EventDetails, ExchangeError, ExportReport, ImportReport, JobPreview,
};
