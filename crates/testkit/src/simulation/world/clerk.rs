//! Who takes jobs further: a step may be tried twice, by somebody who knows only how the job was.

use redrive_core::triage::{JobState, Step};
use redrive_store::Store;
use redrive_store::operate::Advance;

use super::World;
use super::perform::at_once;
use crate::simulation::model::{Check, Wish};
use crate::simulation::trace::say;

impl World {
    /// Takes a job a step further, if there is one that can be.
    pub(super) fn clerk_some(&mut self) -> Check<bool> {
        if self.limbo || self.model.jobs.is_empty() {
            return Ok(false);
        }
        let first = self.chance.below(self.model.jobs.len());
        for index in (first..self.model.jobs.len()).chain(0..first) {
            let job = &self.model.jobs[index];
            match job.next(self.now) {
                Step::Take(most) => {
                    let (job, cursor) = (job.id, job.cursor);
                    let stale = !self.calm && self.chance.one_in(6);
                    let from = if stale { None } else { cursor };
                    let most = if self.calm { most } else { most.min(self.chance.pick(&[1, 2, 3])) };
                    self.advance(Advance { job, from, most, at: self.now })?;
                    return Ok(true);
                }
                Step::End(state, _) => {
                    let id = job.id;
                    self.issue(&Wish::Turn(id, state))?;
                    return Ok(true);
                }
                Step::Wait(_) => {}
            }
        }
        Ok(false)
    }

    fn advance(&mut self, step: Advance) -> Check {
        self.figures.order("step of a job");
        self.arm(false);
        let answer = at_once(self.store.advance(step));
        self.committed();
        say!(self, "a job is taken further: {step:?}: {answer:?}");
        match answer {
            Ok(job) => {
                self.model.advance(step);
                let job = job.ok_or_else(|| format!("there is no {:?}", step.job))?;
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
