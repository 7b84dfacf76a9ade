//! Sagas: steps with compensations, decided as a pure state machine.
//!
//! A saga is a list of steps in several services, each an event of its own, with a forward action and a compensation.
//! It ends complete, or with everything that may have happened compensated in reverse. This module decides: what
//! happened goes in, what to publish comes out. It has no store, no clock and no handler; a caller commits the new state
//! and the events of an answer together, under the saga's `rev`.
//!
//! # The rules
//!
//! - **A step's identity** derives from (tenant, saga, id), the direction and the step's name ([`step_id`]), so that a
//!   repetition anywhere is recognised.
//! - **Parallel steps join once**: a step starts when all steps that it depends on are done, and starting it is part of
//!   the state.
//! - **A failed forward step begins compensation**, of every step whose event ever existed, unless it is known not to
//!   have executed. A step that timed out is compensated: it may have executed.
//! - **No compensation starts while an attempt of its step may run**, and none before those of the steps that depend on
//!   it. A compensation that died stops the earlier ones until an operator redrives or resolves it.
//! - **A pivot** is retried until its outcome is definite. From its start on, "compensate" is refused and steps behind
//!   it are retried, because there is no way back.
//! - **A running saga keeps its definition.** Another one is refused by its fingerprint.
//!
//! Compensation is not undo: the world saw the forward step, and may have acted on it.
//!
//! ```
//! use redrive_core::saga::{Direction, SagaDefinition, SagaInput, SagaPhase, SagaRun, StepEnd, StepSpec};
//!
//! let order = SagaDefinition::new("order", [
//!     StepSpec::new("stock"),
//!     StepSpec::new("payment"),
//!     StepSpec::new("shipment").after(["stock", "payment"]),
//! ])?;
//! let (mut run, started) = SagaRun::start(order);
//! assert_eq!(started.len(), 2, "stock and payment run side by side");
//! let done = |step: &str| SagaInput::Ended { step: step.to_owned(), direction: Direction::Forward, end: StepEnd::Done };
//! assert!(run.apply(&done("stock"))?.is_empty());
//! assert_eq!(run.apply(&done("payment"))?.len(), 1, "they join, and the shipment starts");
//! run.apply(&done("shipment"))?;
//! assert_eq!(run.phase(), SagaPhase::Complete);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod definition;
mod identity;
mod run;

pub use definition::{DefinitionError, STEPS_MAX, SagaDefinition, StepSpec};
pub use identity::{Direction, step_id};
pub use run::{SagaAction, SagaInput, SagaPhase, SagaRefusal, SagaRun, StepEnd, StepState};
