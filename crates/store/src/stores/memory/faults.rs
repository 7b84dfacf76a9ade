//! Failures on request, for the simulation.

use std::collections::VecDeque;

use redrive_core::planted::{PlantedBug, has};

use super::load::Cursors;
use super::state::{CommitNotice, State};
use crate::error::StoreError;

/// The fault of the next commit that changes something.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InjectedFault {
    /// It fails, and nothing is changed.
    BeforeCommit,
    /// It is committed, and the answer is lost.
    AfterCommit,
    /// The sync fails. The change stays invisible, and calls stay unanswered, until the store is recovered; then the
    /// change is there if it `lands`.
    FailedSync {
        /// Whether the change is there after the recovery.
        lands: bool,
    },
    /// The process dies between two commits. Correct code has one commit, and then this is `AfterCommit`; a planted
    /// bug may have made two of it, and then the second does not happen.
    BetweenCommits,
}

/// The state, and its faults.
#[derive(Debug, Default)]
pub(super) struct World {
    pub(super) state: State,
    pub(super) faults: VecDeque<InjectedFault>,
    pub(super) cursors: Cursors,
    /// Whether a sync failed, and the state after recovery.
    limbo: Option<Option<Box<State>>>,
}

/// The outcome of a commit: the notification for watchers, and the caller's result.
pub(super) type Fate = (CommitNotice, Result<(), StoreError>);

impl World {
    pub(super) fn with_shards(shards: u32) -> Self {
        let mut world = Self::default();
        world.state.shards_max = shards;
        world
    }

    /// Commits the changes, or fails as requested.
    pub(super) fn commit(&mut self) -> Fate {
        if !self.state.is_changed() {
            return (CommitNotice::default(), Ok(()));
        }
        match self.faults.pop_front() {
            None => (self.state.keep(), Ok(())),
            Some(InjectedFault::AfterCommit | InjectedFault::BetweenCommits) => {
                (self.state.keep(), Err(unknown()))
            }
            Some(InjectedFault::BeforeCommit) => {
                let told = has(PlantedBug::NextBeforeCommit).then(|| self.state.clone().keep());
                self.state.undo();
                let what = "the commit failed on request".to_owned();
                (told.unwrap_or_default(), Err(StoreError::Passing { what, source: None }))
            }
            Some(InjectedFault::FailedSync { lands }) => {
                let landed = lands.then(|| {
                    let mut landed = self.state.clone();
                    landed.keep();
                    Box::new(landed)
                });
                self.state.undo();
                self.limbo = Some(landed);
                (CommitNotice::default(), Err(unknown()))
            }
        }
    }

    /// Whether the process dies between two commits. Asked only if a planted bug makes two of one.
    pub(super) fn dies_between(&mut self) -> bool {
        let dies = self.faults.front() == Some(&InjectedFault::BetweenCommits);
        if dies {
            self.faults.pop_front();
        }
        dies
    }

    pub(super) fn check(&self) -> Result<(), StoreError> {
        match self.limbo {
            None => Ok(()),
            Some(_) => Err(StoreError::Poisoned { what: "a sync failed on request".to_owned() }),
        }
    }

    pub(super) fn recover(&mut self) {
        if let Some(Some(landed)) = self.limbo.take() {
            self.state = *landed;
        }
    }
}

pub(super) fn unknown() -> StoreError {
    StoreError::Unknown { what: "on request".to_owned() }
}
