//! Compare and set: a change that is made again whenever another writer was faster.
//!
//! [`redrive_core::ladder::cas`] decides, and says why a conflict after a lost answer is unknown. Here are the contract
//! of a target, the async loop, and its blocking twin ([`blocking`]). Targets that are ready to use: a row with a
//! version column (`redrive::cas`) and an HTTP resource with ETags (`redrive_http::cas`).
//!
//! A target of your own takes two methods. This one has the shape of etcd's transaction: *if* the revision of the key
//! is still the one that was read and the operation's own key does not exist, *then* put both:
//!
//! ```
//! use redrive_core::ladder::cas::{CasPromise, CasSettings, Versions};
//! use redrive_retry::cas::{Cas, CasFailure, CasStored, CasTarget};
//! use std::collections::BTreeMap;
//! use std::convert::Infallible;
//!
//! /// Keys with the revision of their last change; revisions are those of the whole store, so they never return.
//! #[derive(Default)]
//! struct Etcd { revision: u64, keys: BTreeMap<String, (u64, i64)> }
//!
//! impl Etcd {
//!     fn put(&mut self, key: &str, value: i64) {
//!         self.revision += 1;
//!         self.keys.insert(key.to_owned(), (self.revision, value));
//!     }
//! }
//!
//! struct Stock<'a>(&'a mut Etcd);
//!
//! impl CasTarget for Stock<'_> {
//!     type Value = i64;
//!     type Version = u64;
//!     type Error = Infallible;
//!
//!     fn promise(&self) -> CasPromise {
//!         CasPromise { versions: Versions::Monotonic, remembers: true }
//!     }
//!
//!     async fn load(&mut self) -> Result<(i64, u64), CasFailure<Infallible>> {
//!         let (revision, value) = self.0.keys["stock"];
//!         Ok((value, revision))
//!     }
//!
//!     async fn store(&mut self, seen: &u64, value: &i64, operation: &str) -> Result<CasStored, CasFailure<Infallible>> {
//!         let done = format!("operations/{operation}");
//!         // One transaction in etcd: both comparisons, then both puts.
//!         if self.0.keys.contains_key(&done) {
//!             return Ok(CasStored::Already);
//!         }
//!         if self.0.keys["stock"].0 != *seen {
//!             return Ok(CasStored::Conflict);
//!         }
//!         self.0.put("stock", *value);
//!         self.0.put(&done, 1); // under a lease that outlives every repetition
//!         Ok(CasStored::Written)
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let mut etcd = Etcd::default();
//! etcd.put("stock", 7);
//! let sold = Cas::new("order-17").change(&mut Stock(&mut etcd), |stock| stock - 1).await.unwrap();
//! assert_eq!((sold.value, sold.attempts), (6, 1));
//! // The same operation again, from another process: applied already, and not twice.
//! Cas::new("order-17").change(&mut Stock(&mut etcd), |stock| stock - 1).await.unwrap();
//! assert_eq!(etcd.keys["stock"].1, 6);
//! # }
//! ```

use std::error::Error;
use std::fmt;
use std::future::Future;

use redrive_core::Fault;
use redrive_core::ladder::cas::{CasAnswer, CasNext, CasPromise, CasRun, CasSettings};

use crate::clock::ThreadRandom;

pub mod blocking;

/// Something with a value and a version.
pub trait CasTarget {
    /// The value.
    type Value: Clone;
    /// The version of a value.
    type Version;
    /// Its errors.
    type Error;

    /// What it promises about lost answers. Claim only what holds for every writer of the value.
    fn promise(&self) -> CasPromise;

    /// Loads the value with its version, in one read.
    fn load(&mut self) -> impl Future<Output = CasLoaded<Self::Value, Self::Version, Self::Error>> + Send;

    /// Stores the value if the version is still `seen`. A target that remembers operations stores the id in the same
    /// commit, and answers [`CasStored::Already`] to one that it knows.
    fn store(
        &mut self,
        seen: &Self::Version,
        value: &Self::Value,
        operation: &str,
    ) -> impl Future<Output = Result<CasStored, CasFailure<Self::Error>>> + Send;
}

/// The answer of a target to a load: the value and its version.
pub type CasLoaded<V, W, E> = Result<(V, W), CasFailure<E>>;

/// The answer of a target to a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CasStored {
    /// It is written.
    Written,
    /// This operation was applied before; nothing was written.
    Already,
    /// The version is another one; nothing was written.
    Conflict,
}

/// A failure of a target, classified: whether another attempt may help, and whether the store may have been written.
#[derive(Debug, Clone)]
pub struct CasFailure<E> {
    /// The error.
    pub error: E,
    /// What it means.
    pub fault: Fault,
}

/// A change that was applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CasApplied<V> {
    /// The value as the last store had it. If the operation had been applied before, by another process, the value in
    /// the target may be another one.
    pub value: V,
    /// How many stores and loads it took.
    pub attempts: u32,
}

/// Why a change was not applied, or is not known to be.
#[derive(Debug)]
#[non_exhaustive]
pub enum CasError<E> {
    /// The bound is reached. The change is not applied.
    GaveUp {
        /// How many attempts were made.
        attempts: u32,
        /// The last failure, if the last attempt was none of the conflicts.
        source: Option<E>,
    },
    /// The target refused it, and will again. The change is not applied.
    Refused(E),
    /// The caller's function declined to change the value that it saw. The change is not applied.
    Declined,
    /// It cannot be determined whether the change was applied.
    Unknown {
        /// How many attempts were made.
        attempts: u32,
        /// The failure that left it unknown.
        source: Option<E>,
    },
}

impl<E> fmt::Display for CasError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GaveUp { attempts, .. } => write!(
                f,
                "gave up after {attempts} attempts, nothing is written; raise the bound, or spread the writers over \
                 several values"
            ),
            Self::Refused(_) => f.write_str("the target refused the change, nothing is written"),
            Self::Declined => {
                f.write_str("the change does not apply to the present value, nothing is written")
            }
            Self::Unknown { attempts, .. } => write!(
                f,
                "an answer was lost, and after {attempts} attempts it is unknown whether the change is written; read \
                 the value and decide, or let the target remember the operation's id"
            ),
        }
    }
}

impl<E: Error + 'static> Error for CasError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::GaveUp { source, .. } | Self::Unknown { source, .. } => {
                source.as_ref().map(|error| error as &(dyn Error + 'static))
            }
            Self::Refused(error) => Some(error),
            Self::Declined => None,
        }
    }
}

/// One change: the id of the operation, and the settings of its loop.
#[derive(Debug, Clone)]
pub struct Cas {
    operation: String,
    settings: CasSettings,
}

impl Cas {
    /// A change under this id. A target that remembers ids applies each of them once, so derive it from the cause of
    /// the change (`order-17`), not from the attempt.
    #[must_use]
    pub fn new(operation: impl Into<String>) -> Self {
        Self { operation: operation.into(), settings: CasSettings::default() }
    }

    /// Its bound and its waits. Default: [`CasSettings::default`].
    #[must_use]
    pub fn settings(mut self, settings: CasSettings) -> Self {
        self.settings = settings;
        self
    }

    /// Applies a change. The function may run several times, on a fresh value each time: it computes, and does nothing
    /// else.
    ///
    /// # Errors
    /// See [`CasError`]: only [`CasError::Unknown`] leaves open whether the change is applied.
    pub async fn change<T: CasTarget>(
        &self,
        target: &mut T,
        mut change: impl FnMut(&T::Value) -> T::Value,
    ) -> Result<CasApplied<T::Value>, CasError<T::Error>> {
        self.change_if(target, |value| Some(change(value))).await
    }

    /// Applies a change unless the function returns `None` for the value that it sees.
    ///
    /// # Errors
    /// As [`change`](Self::change), and [`CasError::Declined`].
    pub async fn change_if<T: CasTarget>(
        &self,
        target: &mut T,
        mut change: impl FnMut(&T::Value) -> Option<T::Value>,
    ) -> Result<CasApplied<T::Value>, CasError<T::Error>> {
        let mut steps = Steps::new(&self.settings, target.promise());
        let mut pending = None;
        loop {
            let wait = match pending.take() {
                None => match target.load().await {
                    Ok((value, version)) => {
                        let Some(changed) = change(&value) else { return Err(steps.declined()) };
                        pending = Some((changed, version));
                        continue;
                    }
                    Err(failure) => steps.load_failed(failure)?,
                },
                Some((value, version)) => {
                    let answer = target.store(&version, &value, &self.operation).await;
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
            tokio::time::sleep(wait).await;
        }
    }
}

/// How a loop goes on.
enum Step {
    Applied,
    Repeat(std::time::Duration),
    Reload(std::time::Duration),
}

/// What both loops share: the pure run, and the last failure.
struct Steps<'a, E> {
    run: CasRun<'a>,
    last: Option<E>,
}

impl<'a, E> Steps<'a, E> {
    fn new(settings: &'a CasSettings, promise: CasPromise) -> Self {
        Self { run: CasRun::new(settings, promise), last: None }
    }

    fn load_failed(&mut self, failure: CasFailure<E>) -> Result<std::time::Duration, CasError<E>> {
        let next = self.run.load_failed(failure.fault, &mut ThreadRandom);
        self.last = Some(failure.error);
        match self.go_on(next)? {
            Step::Reload(wait) | Step::Repeat(wait) => Ok(wait),
            Step::Applied => Ok(std::time::Duration::ZERO),
        }
    }

    fn stored(&mut self, answer: Result<CasStored, CasFailure<E>>) -> Result<Step, CasError<E>> {
        let answer = match answer {
            Ok(CasStored::Written) => CasAnswer::Written,
            Ok(CasStored::Already) => CasAnswer::Already,
            Ok(CasStored::Conflict) => CasAnswer::Conflict,
            Err(CasFailure { error, fault }) => {
                self.last = Some(error);
                CasAnswer::Failed(fault)
            }
        };
        let next = self.run.stored(answer, &mut ThreadRandom);
        if matches!(next, CasNext::Reload(_)) {
            self.last = None;
        }
        self.go_on(next)
    }

    /// The caller declined a value. With an opaque version, a lost store may still arrive.
    fn declined(&mut self) -> CasError<E> {
        if self.run.is_in_doubt() {
            return CasError::Unknown { attempts: self.run.attempts(), source: self.last.take() };
        }
        CasError::Declined
    }

    fn go_on(&mut self, next: CasNext) -> Result<Step, CasError<E>> {
        let (attempts, source) = (self.run.attempts(), self.last.take());
        match next {
            CasNext::Applied => Ok(Step::Applied),
            CasNext::Reload(wait) => Ok(Step::Reload(wait)),
            CasNext::Repeat(wait) => {
                self.last = source;
                Ok(Step::Repeat(wait))
            }
            CasNext::GaveUp => Err(CasError::GaveUp { attempts, source }),
            CasNext::Refused => {
                Err(source.map_or(CasError::GaveUp { attempts, source: None }, CasError::Refused))
            }
            CasNext::Unknown => Err(CasError::Unknown { attempts, source }),
        }
    }
}
