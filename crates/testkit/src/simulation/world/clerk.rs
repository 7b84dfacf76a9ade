//! The job runner: a step may be tried twice, with an outdated view of the job.

use redrive_core::triage::{JobState, JobStep};
use redrive_store::operate::JobAdvance;
use redrive_store::prelude::*;

use super::World;
use super::perform::at_once;
use crate::simulation::model::{Check, Wish};
use crate::simulation::trace::say;
use crate::simulation::words;

impl World {
    /// Steps a job, if there is one that can be.
    pub(super) fn clerk_some(&mut self) -> Check<bool> {
        if self.limbo || self.model.jobs.is_empty() {
            return Ok(false);
        }
        let first = self.chance.below(self.model.jobs.len());
        for index in (first..self.model.jobs.len()).chain(0..first) {
            let job = &self.model.jobs[index];
            match job.next(self.now) {
                JobStep::Take(most) => {
                    let (job, cursor) = (job.id, job.cursor);
                    let stale = !self.calm && self.chance.one_in(6);
                    let from = if stale { None } else { cursor };
                    let most = if self.calm { most } else { most.min(self.chance.pick(&[1, 2, 3])) };
                    self.advance(JobAdvance { job, from, most, at: self.now })?;
                    return Ok(true);
                }
                JobStep::End(state, _) => {
                    let id = job.id;
                    self.issue(&Wish::Turn(id, state))?;
                    return Ok(true);
                }
                JobStep::Wait(_) => {}
            }
        }
        Ok(false)
    }

    fn advance(&mut self, step: JobAdvance) -> Check {
        self.figures.ordered("step of a job");
        self.arm(false);
        let answer = at_once(self.store.advance(step));
        self.committed();
        say!(self, "{:?} takes up to {} dead letters: {}", step.job, step.most, words::answered(&answer));
        match answer {
            Ok(job) => {
                self.model.advance(step);
                let job = job.ok_or_else(|| format!("{:?} is not in the store", step.job))?;
                self.model.check_job(&job)
            }
            Err(error) => {
                if self.landed(&error) {
                    self.model.advance(step);
                }
                Ok(())
            }
        }
    }

    /// A job in one of these states, if there is one.
    pub(super) fn some_job(&mut self, states: &[JobState]) -> Option<redrive_core::triage::JobId> {
        let jobs: Vec<_> =
            self.model.jobs.iter().filter(|job| states.contains(&job.state)).map(|job| job.id).collect();
        (!jobs.is_empty()).then(|| self.chance.pick(&jobs))
    }
}
