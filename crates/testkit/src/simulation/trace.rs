//! The last steps in words.
//!
//! Words cost more than steps. So nothing is written down at first; a seed that fails is run again, falls the
//! same way, and is written down then.

use std::collections::VecDeque;

/// How many steps are kept.
const STEPS_MAX: usize = 400;

/// The last steps, if somebody wants them.
#[derive(Debug, Default)]
pub(super) struct Trace {
    pub(super) on: bool,
    steps: VecDeque<String>,
}

impl Trace {
    pub(super) fn new(on: bool) -> Self {
        Self { on, steps: VecDeque::new() }
    }

    pub(super) fn push(&mut self, step: String) {
        if self.steps.len() == STEPS_MAX {
            self.steps.pop_front();
        }
        self.steps.push_back(step);
    }

    pub(super) fn into_steps(self) -> Vec<String> {
        self.steps.into()
    }
}

/// Writes a step down, if somebody wants it.
macro_rules! say {
    ($world:expr, $($words:tt)*) => {
        if $world.trace.on {
            let at = $world.now.as_nanos() / 1_000_000;
            let line = format!("{at:>8} ms  {}", format_args!($($words)*));
            $world.trace.push(line);
        }
    };
}
pub(super) use say;
