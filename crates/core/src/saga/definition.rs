//! The steps of a saga, and what they depend on.

use std::collections::BTreeSet;

use super::identity::hash;

/// The most steps that a saga has. A saga is no workflow language; what needs more is several sagas.
pub const STEPS_MAX: usize = 64;

/// A step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepSpec {
    pub(super) name: String,
    pub(super) after: Vec<String>,
    pub(super) pivot: bool,
}

impl StepSpec {
    /// A step that depends on no other.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), after: Vec::new(), pivot: false }
    }

    /// It starts when these steps are done. They come before it in the list.
    #[must_use]
    pub fn after<S: Into<String>>(mut self, steps: impl IntoIterator<Item = S>) -> Self {
        self.after.extend(steps.into_iter().map(Into::into));
        self
    }

    /// There is no way back from it: it runs alone, and is retried until its outcome is definite.
    #[must_use]
    pub const fn pivot(mut self) -> Self {
        self.pivot = true;
        self
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// A saga's steps, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SagaDefinition {
    name: String,
    pub(super) steps: Vec<StepSpec>,
    /// For each step, those that it depends on, directly or not.
    pub(super) before: Vec<BTreeSet<usize>>,
}

/// Why a definition is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DefinitionError {
    /// There are none, or too many.
    #[error("a saga has between 1 and {STEPS_MAX} steps, and this one has {0}")]
    Steps(usize),
    /// A name is empty, or used twice.
    #[error("the step name `{0}` is empty or used twice; steps are found by their names")]
    Name(String),
    /// A step depends on one that is not before it.
    #[error("step `{step}` comes after `{after}`, which is not before it in the list")]
    After {
        /// The step.
        step: String,
        /// The one that it depends on.
        after: String,
    },
    /// Something may run beside a pivot.
    #[error("`{beside}` may run beside the pivot `{pivot}`; let one of them come after the other")]
    Pivot {
        /// The pivot.
        pivot: String,
        /// The other step.
        beside: String,
    },
    /// There is more than one pivot.
    #[error("`{0}` is a second pivot; a saga has one point of no return")]
    Pivots(String),
}

impl SagaDefinition {
    /// These steps under this name.
    ///
    /// # Errors
    /// If they make no saga.
    pub fn new(
        name: impl Into<String>,
        steps: impl IntoIterator<Item = StepSpec>,
    ) -> Result<Self, DefinitionError> {
        let steps: Vec<StepSpec> = steps.into_iter().collect();
        if steps.is_empty() || steps.len() > STEPS_MAX {
            return Err(DefinitionError::Steps(steps.len()));
        }
        let mut before: Vec<BTreeSet<usize>> = Vec::new();
        for (at, step) in steps.iter().enumerate() {
            if step.name.is_empty() || steps[..at].iter().any(|known| known.name == step.name) {
                return Err(DefinitionError::Name(step.name.clone()));
            }
            let mut all = BTreeSet::new();
            for after in &step.after {
                let found = steps[..at].iter().position(|known| known.name == *after);
                let Some(found) = found else {
                    return Err(DefinitionError::After { step: step.name.clone(), after: after.clone() });
                };
                all.insert(found);
                all.extend(before[found].iter().copied());
            }
            before.push(all);
        }
        check_pivot(&steps, &before)?;
        Ok(Self { name: name.into(), steps, before })
    }

    /// The saga's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its steps.
    #[must_use]
    pub fn steps(&self) -> &[StepSpec] {
        &self.steps
    }

    /// What a running saga is compared with: names, order, dependencies and the pivot.
    #[must_use]
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut parts = vec![self.name.clone(), self.steps.len().to_string()];
        for step in &self.steps {
            parts.extend([step.name.clone(), step.pivot.to_string(), step.after.len().to_string()]);
            parts.extend(step.after.iter().cloned());
        }
        hash(parts.iter().map(String::as_str))
    }

    pub(super) fn find(&self, step: &str) -> Option<usize> {
        self.steps.iter().position(|known| known.name == step)
    }

    /// The steps that depend on this one, directly or not.
    pub(super) fn dependents(&self, step: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.steps.len()).filter(move |other| self.before[*other].contains(&step))
    }

    pub(super) fn pivot(&self) -> Option<usize> {
        self.steps.iter().position(|step| step.pivot)
    }
}

fn check_pivot(steps: &[StepSpec], before: &[BTreeSet<usize>]) -> Result<(), DefinitionError> {
    let mut pivots = (0..steps.len()).filter(|at| steps[*at].pivot);
    let Some(pivot) = pivots.next() else { return Ok(()) };
    if let Some(second) = pivots.next() {
        return Err(DefinitionError::Pivots(steps[second].name.clone()));
    }
    let is_ordered = |other: &usize| before[pivot].contains(other) || before[*other].contains(&pivot);
    let beside = (0..steps.len()).filter(|other| *other != pivot).find(|other| !is_ordered(other));
    match beside {
        None => Ok(()),
        Some(beside) => Err(DefinitionError::Pivot {
            pivot: steps[pivot].name.clone(),
            beside: steps[beside].name.clone(),
        }),
    }
}
