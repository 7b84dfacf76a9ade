//! Changes to many dead letters: planned first, then done in the background.

use std::time::Duration;

use redrive_core::triage::job::JobAct;
use redrive_core::triage::{Job, JobId, JobPlan, JobState, Redrive as How, Strategy};
use redrive_store::operate::{Refusal, What};
use redrive_store::{Matching, StoreError};

use super::{Desk, DeskError};

/// What a job would do.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The letters that it is about.
    pub matching: Matching,
    /// How long it takes at least, at its rate.
    pub time: Duration,
    /// What is to be thought of before.
    pub warnings: Vec<String>,
}

impl Desk {
    /// What a job would do: how many letters, of which queues and keys, how long, and what to think of.
    ///
    /// # Errors
    /// [`DeskError::Refused`] where the strategy cannot be meant; or the store cannot be read.
    pub async fn plan(&self, plan: &JobPlan) -> Result<Plan, DeskError> {
        plan.strategy.check().and_then(|()| plan.filter.check()).map_err(Refusal::Senseless)?;
        let matching = self.redrive.store().matching(plan.filter.clone()).await?;
        let mut warnings = Vec::new();
        if matching.letters == 0 {
            warnings.push("no dead letter fits".to_owned());
        }
        if let JobAct::Redrive(how) = &plan.act {
            warn_of_redrive(how, &matching, &mut warnings);
            let Strategy { rate, canary, stop_at, .. } = plan.strategy;
            if stop_at.is_some() && rate.is_none() && canary.is_none() {
                let text =
                    "without a rate or a canary all are put back before it turns out that they fail again";
                warnings.push(text.to_owned());
            }
            self.warn_of_handlers(how, &matching, &mut warnings);
        }
        let time = plan.strategy.time_for(matching.letters);
        Ok(Plan { matching, time, warnings })
    }

    fn warn_of_handlers(&self, how: &How, matching: &Matching, warnings: &mut Vec<String>) {
        if !self.redrive.is_started() {
            return;
        }
        let (run, pulled) = (self.redrive.0.queues.to_run(), self.redrive.0.queues.to_pull());
        let runs = |name: &str| run.iter().any(|queue| queue.name() == name);
        // Workers outside fetch these.
        let is_pulled = |name: &str| pulled.iter().any(|queue| queue.name() == name);
        match &how.to {
            Some(to) if !runs(to) => warnings.push(format!("no handler of the queue {to} runs here")),
            Some(_) => {}
            None => {
                let idle = matching.queues.iter().filter(|(name, _)| !runs(name) && !is_pulled(name));
                warnings.extend(idle.map(|(name, _)| format!("no handler of the queue {name} runs here")));
            }
        }
    }

    /// Starts a job. It goes on in the background of whichever process runs handlers, also after a restart.
    ///
    /// # Errors
    /// [`DeskError::Refused`] where it cannot be meant; or the store could not.
    pub async fn start(&self, plan: JobPlan) -> Result<JobId, DeskError> {
        plan.filter.check().map_err(Refusal::Senseless)?;
        let done = self.one(What::Start(Box::new(plan))).await?;
        self.redrive.0.clerk.notify_one();
        done.job.ok_or(DeskError::Refused(Refusal::NoJob))
    }

    /// The last hundred jobs and all that are not over, the latest first.
    ///
    /// # Errors
    /// Where the store cannot be read.
    pub async fn jobs(&self) -> Result<Vec<Job>, StoreError> {
        self.redrive.store().jobs(None).await
    }

    /// A job, with how far it has come.
    ///
    /// # Errors
    /// Where the store cannot be read.
    pub async fn job(&self, id: JobId) -> Result<Option<Job>, StoreError> {
        Ok(self.redrive.store().jobs(Some(id)).await?.into_iter().next())
    }

    /// Lets a job take no more letters for now. Those that it put back go on.
    ///
    /// # Errors
    /// Where it is over or there is none, or the store could not.
    pub async fn pause_job(&self, id: JobId) -> Result<(), DeskError> {
        self.turn(id, JobState::Paused).await
    }

    /// Lets a paused job go on.
    ///
    /// # Errors
    /// Where it is over or there is none, or the store could not.
    pub async fn resume_job(&self, id: JobId) -> Result<(), DeskError> {
        self.turn(id, JobState::Running).await
    }

    /// Ends a job. Letters that it put back stay put back.
    ///
    /// # Errors
    /// Where it is over or there is none, or the store could not.
    pub async fn cancel_job(&self, id: JobId) -> Result<(), DeskError> {
        self.turn(id, JobState::Cancelled).await
    }

    async fn turn(&self, id: JobId, state: JobState) -> Result<(), DeskError> {
        self.one(What::Turn(id, state, String::new())).await?;
        self.redrive.0.clerk.notify_one();
        Ok(())
    }
}

fn warn_of_redrive(how: &How, matching: &Matching, warnings: &mut Vec<String>) {
    let Matching { out_of_order, redriven_before, unsure, .. } = *matching;
    if out_of_order > 0 && how.out_of_order {
        warnings.push(format!("{out_of_order} may run after later events of their key"));
    } else if out_of_order > 0 {
        warnings.push(format!(
            "{out_of_order} are left out: later events of their key may have run already; say that they may run out \
             of order"
        ));
    }
    if redriven_before > 0 {
        warnings.push(format!("{redriven_before} were put back before, and died again"));
    }
    if unsure > 0 {
        warnings.push(format!(
            "{unsure} have attempts whose effect is unknown; they run with the same identity, by which a receiver can \
             tell"
        ));
    }
    if how.keep_attempts {
        warnings.push("their attempts count on, so each has one more".to_owned());
    }
}
