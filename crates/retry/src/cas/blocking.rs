//! The same without async, for `rusqlite` and the like.

use redrive_core::ladder::cas::CasPromise;

use super::{Cas, CasApplied, CasError, CasFailure, CasLoaded, CasStored, Step, Steps};

/// Something with a value and a version, as [`CasTarget`](super::CasTarget), whose methods block.
pub trait CasTarget {
    /// The value.
    type Value: Clone;
    /// The version of a value.
    type Version;
    /// Its errors.
    type Error;

    /// What it promises about lost answers.
    fn promise(&self) -> CasPromise;

    /// Loads the value with its version, in one read.
    ///
    /// # Errors
    /// If it could not be read.
    fn load(&mut self) -> CasLoaded<Self::Value, Self::Version, Self::Error>;

    /// Stores the value if the version is still `seen`.
    ///
    /// # Errors
    /// If it was not stored, or may not have been.
    fn store(
        &mut self,
        seen: &Self::Version,
        value: &Self::Value,
        operation: &str,
    ) -> Result<CasStored, CasFailure<Self::Error>>;
}

impl Cas {
    /// Applies a change as [`change`](Self::change) does, on this thread.
    ///
    /// # Errors
    /// As [`change`](Self::change).
    pub fn change_blocking<T: CasTarget>(
        &self,
        target: &mut T,
        mut change: impl FnMut(&T::Value) -> T::Value,
    ) -> Result<CasApplied<T::Value>, CasError<T::Error>> {
        self.change_if_blocking(target, |value| Some(change(value)))
    }

    /// Applies a change as [`change_if`](Self::change_if) does, on this thread.
    ///
    /// # Errors
    /// As [`change_if`](Self::change_if).
    pub fn change_if_blocking<T: CasTarget>(
        &self,
        target: &mut T,
        mut change: impl FnMut(&T::Value) -> Option<T::Value>,
    ) -> Result<CasApplied<T::Value>, CasError<T::Error>> {
        let mut steps = Steps::new(&self.settings, target.promise());
        let mut pending = None;
        loop {
            let wait = match pending.take() {
                None => match target.load() {
                    Ok((value, version)) => {
                        let Some(changed) = change(&value) else { return Err(steps.declined()) };
                        pending = Some((changed, version));
                        continue;
                    }
                    Err(failure) => steps.load_failed(failure)?,
                },
                Some((value, version)) => {
                    let answer = target.store(&version, &value, &self.operation);
                    match steps.stored(answer)? {
                        Step::Applied => return Ok(CasApplied { value, attempts: steps.run.attempts() }),
                        Step::Repeat(wait) => {
                            pending = Some((value, version));
                            wait
                        }
                        Step::Reload(wait) => wait,
                    }
                }
            };
            std::thread::sleep(wait);
        }
    }
}
