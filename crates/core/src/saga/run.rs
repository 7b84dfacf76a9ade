//! A saga on its way.

use super::definition::SagaDefinition;
use super::identity::Direction;
use crate::disposition::Executed;

/// Where a step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StepState {
    /// No event of it ever existed.
    Waiting,
    /// Its forward event exists, and an attempt may run.
    Running,
    /// Its forward action is done.
    Done,
    /// Its forward action may have executed, no attempt of it runs, and its compensation has not started.
    Failed,
    /// Its compensation exists.
    Compensating,
    /// Its compensation died. Earlier ones wait for an operator.
    CompensationDead,
    /// It is compensated.
    Compensated,
    /// It is known not to have executed: there is nothing to compensate.
    NotExecuted,
}

impl StepState {
    /// Whether compensations of earlier steps may start.
    const fn is_undone(self) -> bool {
        matches!(self, Self::Waiting | Self::Compensated | Self::NotExecuted)
    }
}

/// Where a saga is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SagaPhase {
    /// Its steps go forward.
    Forward,
    /// It compensates what may have executed.
    Compensating,
    /// All steps are done.
    Complete,
    /// Everything that may have executed is compensated.
    Compensated,
}

/// How a step's event ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StepEnd {
    /// It worked. A compensation that found nothing to undo worked as well.
    Done,
    /// It failed for good; whether it executed, over all its attempts. One attempt of unknown outcome makes the whole
    /// unknown, unless the receiver knows the key and says otherwise.
    Failed(Executed),
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SagaInput {
    /// A step's event ended, and no attempt of it runs any more.
    Ended {
        /// The step.
        step: String,
        /// Which of its events.
        direction: Direction,
        /// How it ended.
        end: StepEnd,
    },
    /// The saga's time is over.
    TimedOut,
    /// An operator: compensate now.
    Compensate,
    /// An operator: redrive a compensation that died.
    Redrive {
        /// The step.
        step: String,
    },
    /// An operator dealt with a compensation that died by hand.
    ResolveByHand {
        /// The step.
        step: String,
    },
}

/// What to do, in the commit of the new state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SagaAction {
    /// Publish a step's event. The compensation carries the forward id, so that its receiver refuses that ever after.
    Publish {
        /// The step.
        step: String,
        /// Which event.
        direction: Direction,
    },
    /// Retry a step's event: there is no way back, so its outcome has to become definite.
    Retry {
        /// The step.
        step: String,
    },
    /// Redrive a compensation that died.
    Redrive {
        /// The step.
        step: String,
    },
    /// Start no further attempt of a forward event, and report its end.
    Stop {
        /// The step.
        step: String,
    },
}

/// Why an input changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SagaRefusal {
    /// The saga has no such step: hold it, and say so.
    #[error("the saga has no step `{0}`; it keeps the definition that it started with")]
    UnknownStep(String),
    /// The step is not where the input would have it: a repetition, or late.
    #[error("step `{step}` is {state:?}, so this changes nothing")]
    Stale {
        /// The step.
        step: String,
        /// Where it is.
        state: StepState,
    },
    /// The pivot has started.
    #[error("the pivot `{0}` has started, and there is no way back; let it finish")]
    PastPivot(String),
    /// The saga has ended, or compensates already.
    #[error("the saga is {0:?} already")]
    Phase(SagaPhase),
    /// The definition is not the one that the saga started with.
    #[error("the definition of a running saga cannot change; finish it with the one that it started with")]
    Definition,
}

/// A running saga: its definition and the state of its steps. A caller stores both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SagaRun {
    definition: SagaDefinition,
    steps: Vec<StepState>,
    compensates: bool,
    rev: u64,
}

impl SagaRun {
    /// Starts a saga: all steps that depend on none.
    #[must_use]
    pub fn start(definition: SagaDefinition) -> (Self, Vec<SagaAction>) {
        let steps = vec![StepState::Waiting; definition.steps.len()];
        let mut run = Self { definition, steps, compensates: false, rev: 1 };
        let actions = run.go_on();
        (run, actions)
    }

    /// A saga as it was stored, for a program with this definition.
    ///
    /// # Errors
    /// [`SagaRefusal::Definition`] if the program's definition is not the one that it started with: hold it.
    pub fn restore(
        definition: SagaDefinition,
        fingerprint: [u8; 32],
        steps: Vec<StepState>,
        compensates: bool,
        rev: u64,
    ) -> Result<Self, SagaRefusal> {
        if definition.fingerprint() != fingerprint || steps.len() != definition.steps.len() {
            return Err(SagaRefusal::Definition);
        }
        Ok(Self { definition, steps, compensates, rev })
    }

    /// Its definition.
    #[must_use]
    pub const fn definition(&self) -> &SagaDefinition {
        &self.definition
    }

    /// Grows with every change: what a commit is conditional on.
    #[must_use]
    pub const fn rev(&self) -> u64 {
        self.rev
    }

    /// The states of its steps, in the order of the definition.
    #[must_use]
    pub fn steps(&self) -> &[StepState] {
        &self.steps
    }

    /// Where it is.
    #[must_use]
    pub fn phase(&self) -> SagaPhase {
        if self.compensates {
            let is_over = self.steps.iter().all(|state| state.is_undone());
            return if is_over { SagaPhase::Compensated } else { SagaPhase::Compensating };
        }
        let is_done = self.steps.iter().all(|state| *state == StepState::Done);
        if is_done { SagaPhase::Complete } else { SagaPhase::Forward }
    }

    /// Takes in what happened, and returns what to do. A refused input changes nothing.
    ///
    /// # Errors
    /// See [`SagaRefusal`].
    pub fn apply(&mut self, input: &SagaInput) -> Result<Vec<SagaAction>, SagaRefusal> {
        let mut actions = match input {
            SagaInput::Ended { step, direction: Direction::Forward, end } => {
                self.forward_ended(step, *end)?
            }
            SagaInput::Ended { step, direction: Direction::Compensation, end } => {
                let worked = *end == StepEnd::Done;
                let to = if worked { StepState::Compensated } else { StepState::CompensationDead };
                self.change(step, StepState::Compensating, to)?;
                Vec::new()
            }
            SagaInput::TimedOut | SagaInput::Compensate => self.turn_back()?,
            SagaInput::Redrive { step } => {
                self.change(step, StepState::CompensationDead, StepState::Compensating)?;
                vec![SagaAction::Redrive { step: step.clone() }]
            }
            SagaInput::ResolveByHand { step } => {
                self.change(step, StepState::CompensationDead, StepState::Compensated)?;
                Vec::new()
            }
        };
        self.rev += 1;
        actions.extend(self.go_on());
        Ok(actions)
    }

    /// Moves a step from one state to another.
    fn change(&mut self, step: &str, from: StepState, to: StepState) -> Result<usize, SagaRefusal> {
        let at = self.definition.find(step).ok_or_else(|| SagaRefusal::UnknownStep(step.to_owned()))?;
        let state = self.steps[at];
        if state != from {
            return Err(SagaRefusal::Stale { step: step.to_owned(), state });
        }
        self.steps[at] = to;
        Ok(at)
    }

    fn forward_ended(&mut self, step: &str, end: StepEnd) -> Result<Vec<SagaAction>, SagaRefusal> {
        let executed = match end {
            StepEnd::Done => {
                self.change(step, StepState::Running, StepState::Done)?;
                return Ok(Vec::new());
            }
            StepEnd::Failed(executed) => executed,
        };
        let at = self.change(step, StepState::Running, StepState::Running)?;
        let is_pivot = self.definition.steps[at].pivot;
        // A pivot that certainly did not execute leaves the way back open; anything else has to become definite.
        if self.is_past_pivot() && !(is_pivot && executed == Executed::No) {
            return Ok(vec![SagaAction::Retry { step: step.to_owned() }]);
        }
        self.steps[at] = match executed {
            Executed::No => StepState::NotExecuted,
            Executed::Unknown => StepState::Failed,
        };
        if self.compensates {
            return Ok(Vec::new());
        }
        self.turn_back()
    }

    /// Whether the pivot has started and did not certainly fail.
    fn is_past_pivot(&self) -> bool {
        let pivot = self.definition.pivot();
        pivot.is_some_and(|pivot| matches!(self.steps[pivot], StepState::Running | StepState::Done))
    }

    /// Begins compensation, and stops what still runs.
    fn turn_back(&mut self) -> Result<Vec<SagaAction>, SagaRefusal> {
        if let Some(pivot) = self.definition.pivot().filter(|_| self.is_past_pivot()) {
            return Err(SagaRefusal::PastPivot(self.definition.steps[pivot].name.clone()));
        }
        if self.compensates || self.phase() == SagaPhase::Complete {
            return Err(SagaRefusal::Phase(self.phase()));
        }
        self.compensates = true;
        let running = (0..self.steps.len()).filter(|at| self.steps[*at] == StepState::Running);
        Ok(running.map(|at| SagaAction::Stop { step: self.definition.steps[at].name.clone() }).collect())
    }

    /// Starts what may start, and marks it as started: it starts once.
    fn go_on(&mut self) -> Vec<SagaAction> {
        let mut actions = Vec::new();
        for at in 0..self.steps.len() {
            let started = if self.compensates { self.may_compensate(at) } else { self.may_run(at) };
            if !started {
                continue;
            }
            let (state, direction) = if self.compensates {
                (StepState::Compensating, Direction::Compensation)
            } else {
                (StepState::Running, Direction::Forward)
            };
            self.steps[at] = state;
            let step = self.definition.steps[at].name.clone();
            actions.push(SagaAction::Publish { step, direction });
        }
        actions
    }

    fn may_run(&self, at: usize) -> bool {
        let is_done = |before: &usize| self.steps[*before] == StepState::Done;
        self.steps[at] == StepState::Waiting && self.definition.before[at].iter().all(is_done)
    }

    fn may_compensate(&self, at: usize) -> bool {
        matches!(self.steps[at], StepState::Done | StepState::Failed)
            && self.definition.dependents(at).all(|later| self.steps[later].is_undone())
    }
}
