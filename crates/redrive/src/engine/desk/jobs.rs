//! Jobs: bulk changes to many dead letters, planned first, then done in the background.

use std::collections::BTreeMap;
use std::time::Duration;

use redrive_core::triage::job::JobAct;
use redrive_core::triage::{Filter, Job, JobId, JobPlan, JobState, JobStrategy, RedriveOptions as How};
use redrive_store::operate::{FailingQuery, OperatorAction, Refusal};
use redrive_store::{FilterMatches, StoreError};

use super::{Desk, DeskError};

/// A forecast of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct JobPreview {
    /// The dead letters it covers.
    pub matching: FilterMatches,
    /// How long it takes at least, at its rate.
    pub time: Duration,
    /// Warnings to consider before starting it.
    pub warnings: Vec<String>,
}

impl Desk {
    /// What a job would do: how many dead letters, of which queues and keys, how long it takes, and warnings.
    ///
    /// # Errors
    /// [`DeskError::Refused`] if the strategy is invalid; or if the store cannot be read.
    pub async fn plan(&self, plan: &JobPlan) -> Result<JobPreview, DeskError> {
        plan.strategy.check().and_then(|()| plan.filter.check()).map_err(Refusal::Senseless)?;
        let mut warnings = Vec::new();
        let matching = match plan.act {
            JobAct::RetryNow => self.retrying(plan, &mut warnings).await?,
            JobAct::Redrive(_) | JobAct::Discard => {
                self.redrive.store().matching(plan.filter.clone()).await?
            }
        };
        if matching.letters == 0 {
            let what = if plan.act == JobAct::RetryNow {
                "no retrying event matches"
            } else {
                "no dead letter matches"
            };
            warnings.push(what.to_owned());
        }
        if let JobAct::Redrive(how) = &plan.act {
            warn_of_redrive(how, &matching, &mut warnings);
            let JobStrategy { rate, canary, stop_at, .. } = plan.strategy;
            if stop_at.is_some() && rate.is_none() && canary.is_none() {
                let text =
                    "without a rate or a canary, all are redriven before it shows whether they fail again";
                warnings.push(text.to_owned());
            }
            self.warn_of_handlers(how, &matching, &mut warnings);
        }
        let time = plan.strategy.time_for(matching.letters);
        Ok(JobPreview { matching, time, warnings })
    }

    /// The retrying events that a plan covers, as far as queue, tenant and cause determine it.
    async fn retrying(&self, plan: &JobPlan, warnings: &mut Vec<String>) -> Result<FilterMatches, DeskError> {
        let Filter { queue, tenant, cause, .. } = plan.filter.clone();
        let query = FailingQuery { queue, tenant, cause, limit: usize::MAX };
        let groups = self.redrive.store().failing(query).await?;
        let mut matching = FilterMatches::default();
        let mut queues: BTreeMap<String, u64> = BTreeMap::new();
        for group in &groups {
            matching.letters += group.events;
            for (queue, events) in &group.queues {
                *queues.entry(queue.clone()).or_default() += events;
            }
        }
        matching.queues = queues.into_iter().collect();
        if let Some(looked) = groups.iter().find_map(|group| group.looked) {
            warnings.push(format!("there are more than the {looked} retrying events that were counted"));
        }
        if !plan.filter.is_coarse() {
            warnings.push(
                "the count uses queue, tenant and group only; the job applies the whole filter".to_owned(),
            );
        }
        self.warn_of_handlers(&How::default(), &matching, warnings);
        Ok(matching)
    }

    fn warn_of_handlers(&self, how: &How, matching: &FilterMatches, warnings: &mut Vec<String>) {
        if !self.redrive.is_started() {
            return;
        }
        let (run, pulled) = (self.redrive.0.queues.to_run(), self.redrive.0.queues.to_pull());
        let runs = |name: &str| run.iter().any(|queue| queue.name() == name);
        // Workers outside the engine lease these.
        let is_pulled = |name: &str| pulled.iter().any(|queue| queue.name() == name);
        match &how.to {
            Some(to) if !runs(to) => warnings.push(format!("this process runs no handler of the queue {to}")),
            Some(_) => {}
            None => {
                let idle = matching.queues.iter().filter(|(name, _)| !runs(name) && !is_pulled(name));
                warnings.extend(
                    idle.map(|(name, _)| format!("this process runs no handler of the queue {name}")),
                );
            }
        }
    }

    /// Starts a job. It runs in the background of a process that runs handlers, also after a restart.
    ///
    /// # Errors
    /// [`DeskError::Refused`] if the plan is invalid; or if the store operation fails.
    pub async fn start(&self, plan: JobPlan) -> Result<JobId, DeskError> {
        plan.filter.check().map_err(Refusal::Senseless)?;
        let done = self.one(OperatorAction::Start(Box::new(plan))).await?;
        self.redrive.0.clerk.notify_one();
        done.job.ok_or(DeskError::Refused(Refusal::NoJob))
    }

    /// The last hundred jobs and all unfinished ones, the latest first.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn jobs(&self) -> Result<Vec<Job>, StoreError> {
        self.redrive.store().jobs(None).await
    }

    /// A job, with its progress.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn job(&self, id: JobId) -> Result<Option<Job>, StoreError> {
        Ok(self.redrive.store().jobs(Some(id)).await?.into_iter().next())
    }

    /// Pauses a job: it takes no more dead letters for now. Events that it redrove go on.
    ///
    /// # Errors
    /// If the job is over or unknown, or the store operation fails.
    pub async fn pause_job(&self, id: JobId) -> Result<(), DeskError> {
        self.turn(id, JobState::Paused).await
    }

    /// Resumes a paused job.
    ///
    /// # Errors
    /// If the job is over or unknown, or the store operation fails.
    pub async fn resume_job(&self, id: JobId) -> Result<(), DeskError> {
        self.turn(id, JobState::Running).await
    }

    /// Cancels a job. Events that it redrove stay redriven.
    ///
    /// # Errors
    /// If the job is over or unknown, or the store operation fails.
    pub async fn cancel_job(&self, id: JobId) -> Result<(), DeskError> {
        self.turn(id, JobState::Cancelled).await
    }

    async fn turn(&self, id: JobId, state: JobState) -> Result<(), DeskError> {
        self.one(OperatorAction::Turn(id, state, String::new())).await?;
        self.redrive.0.clerk.notify_one();
        Ok(())
    }
}

fn warn_of_redrive(how: &How, matching: &FilterMatches, warnings: &mut Vec<String>) {
    let FilterMatches { out_of_order, redriven_before, unsure, .. } = *matching;
    if out_of_order > 0 && how.out_of_order {
        warnings.push(format!("{out_of_order} may run after later events of their key"));
    } else if out_of_order > 0 {
        warnings.push(format!(
            "{out_of_order} are left out: later events of their key may have run already; allow it with `out_of_order`"
        ));
    }
    if redriven_before > 0 {
        warnings.push(format!("{redriven_before} were redriven before, and died again"));
    }
    if unsure > 0 {
        warnings.push(format!(
            "{unsure} have attempts whose effect is unknown; they run under the same identity, so that the receiver can deduplicate"
        ));
    }
    if how.keep_attempts {
        warnings.push("their attempt counts are kept, so each gets one more attempt".to_owned());
    }
}
