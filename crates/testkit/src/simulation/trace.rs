//! The steps of a run in words.
//!
//! Words cost more than steps. A run therefore records nothing at first; a seed that fails is run again,
//! fails in the same way, and is recorded then.

use std::collections::VecDeque;

/// How many steps are kept if only the last ones are wanted.
const STEPS_MAX: usize = 400;

/// The recorded steps, if they are wanted.
#[derive(Debug, Default)]
pub(super) struct Trace {
    pub(super) on: bool,
    /// How many are kept. A run ends after a bounded number of steps, so `usize::MAX` is a bound too.
    steps_max: usize,
    steps: VecDeque<String>,
}

impl Trace {
    /// Keeps no steps.
    pub(super) fn none() -> Self {
        Self::default()
    }

    /// Keeps the last steps.
    pub(super) fn last() -> Self {
        Self { on: true, steps_max: STEPS_MAX, steps: VecDeque::new() }
    }

    /// Keeps every step.
    pub(super) fn whole() -> Self {
        Self { steps_max: usize::MAX, ..Self::last() }
    }

    pub(super) fn push(&mut self, step: String) {
        if self.steps.len() == self.steps_max {
            self.steps.pop_front();
        }
        self.steps.push_back(step);
    }

    pub(super) fn into_steps(self) -> Vec<String> {
        self.steps.into()
    }
}

/// Records a step, if the trace keeps steps.
macro_rules! say {
    ($world:expr, $($words:tt)*) => {
        if $world.trace.on {
            let at = $crate::simulation::plain::millis($world.now.as_nanos());
            let words = $crate::simulation::plain::plain(&format!($($words)*), &$world.model);
            $world.trace.push(format!("{at:>8} ms  {words}"));
        }
    };
}
pub(super) use say;
