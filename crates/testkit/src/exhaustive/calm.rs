//! Continues from any state without faults: every event has to be done.

use redrive_core::queue_entry::FencingToken;
use redrive_core::scheduler::{LoadId, NoteId};

use super::step::Step;
use super::world::{Check, Heard, Message, World};

/// The most steps until every event is done.
const CALM_STEPS_MAX: usize = 400;

impl World {
    /// Continues without faults until all events are done. Answers of earlier epochs arrive, or never do.
    pub(super) fn finish(&mut self, old_answers_come: bool) -> Check {
        if !self.is_published {
            self.step(Step::Publish)?;
        }
        if self.is_paused {
            self.step(Step::Pause(false))?;
        }
        for _ in 0..CALM_STEPS_MAX {
            if !old_answers_come {
                self.forget_old_answers();
            }
            if self.done.len() == 3 && self.ops.is_empty() && self.inbox.is_empty() {
                return Ok(());
            }
            let Some(step) = self.next_calm() else {
                let left = 3 - self.done.len();
                return Err(format!("{left} events are runnable and no action is planned"));
            };
            self.step(step)?;
        }
        Err(format!("{} events are not done, and work goes on without end", 3 - self.done.len()))
    }

    /// Answers of earlier epochs never arrive.
    fn forget_old_answers(&mut self) {
        let owners = self.owners;
        let is_old = |token: &FencingToken| owners[token.shard as usize] != Some(*token);
        self.inbox.retain(|message| match &message.input {
            Heard::Noted(NoteId { token, .. }, _)
            | Heard::Lost(token)
            | Heard::Ended(token, ..)
            | Heard::Settled(token, ..)
            | Heard::SettleFailed(token, ..) => !is_old(token),
            Heard::Loaded(LoadId { flow, .. }, _) | Heard::LoadFailed(LoadId { flow, .. }) => {
                owners[flow.shard as usize].is_some_and(|owner| owner.epoch == flow.epoch)
            }
            Heard::Own(_) | Heard::Arrived(_) => true,
        });
    }

    fn next_calm(&self) -> Option<Step> {
        // A shard that the scheduler does not have, and has no message about, is taken.
        for shard in 0..2 {
            let owner = self.owners[shard as usize];
            let is_coming =
                |message: &Message| matches!(&message.input, Heard::Own(taken) if Some(taken.token) == owner);
            let has = owner.is_some_and(|token| self.scheduler.owns(token));
            if !has && !self.inbox.iter().any(is_coming) {
                return Some(Step::Take(shard));
            }
        }
        if let Some(number) = (0..self.inbox.len()).find(|number| self.may_hear(*number)) {
            return Some(Step::Hear(number));
        }
        if !self.ops.is_empty() {
            return Some(Step::Do(0));
        }
        if !self.attempts.is_empty() {
            return Some(Step::Succeed(0));
        }
        self.scheduler.next_wake().filter(|at| *at > self.now).map(|_| Step::Wait)
    }
}
