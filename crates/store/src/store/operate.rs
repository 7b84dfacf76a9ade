//! Operating: reading dead letters, and operators' commands.

use redrive_core::triage::{ActiveRules, Filter, Job, JobId};

use super::StoreFuture;
use crate::event_status::FilterMatches;
use crate::operate::{
    AuditLine, CommandResult, FailingGroup, FailingQuery, Group, GroupQuery, JobAdvance, OperatorCommand,
    Retrying,
};

/// The part of a [`Store`](super::Store) behind the operators' desk.
pub trait OperatorStore {
    /// Carries out an operator's command, in one commit with its line in the audit.
    fn operate(&self, order: OperatorCommand) -> StoreFuture<CommandResult>;

    /// Takes a running job one step further, if it is at the position of the step. Returns the job.
    fn advance(&self, step: JobAdvance) -> StoreFuture<Option<Job>>;

    /// The job with this id; without an id all unfinished jobs and the last hundred, the latest first.
    fn jobs(&self, id: Option<JobId>) -> StoreFuture<Vec<Job>>;

    /// The active rules.
    fn controls(&self) -> StoreFuture<ActiveRules>;

    /// Dead letters in groups: by cause, type or key.
    fn groups(&self, query: GroupQuery) -> StoreFuture<Vec<Group>>;

    /// Retrying events in groups, by the cause of their last failure. Of very many only a bounded number is sampled,
    /// see [`FailingGroup::looked`].
    fn failing(&self, query: FailingQuery) -> StoreFuture<Vec<FailingGroup>>;

    /// How many events of each queue failed and are retried, and since when. Leased events count.
    fn retrying(&self) -> StoreFuture<Vec<Retrying>>;

    /// What a filter over dead letters matches: how many, in which queues and keys.
    fn matching(&self, filter: Filter) -> StoreFuture<FilterMatches>;

    /// The audit before the line with this number, the latest line first.
    fn audit(&self, before: Option<u64>, limit: usize) -> StoreFuture<Vec<AuditLine>>;
}
