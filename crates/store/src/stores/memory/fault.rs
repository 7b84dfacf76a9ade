//! Failures on request, for the simulation.

use std::collections::VecDeque;

use redrive_core::planted::{Flaw, has};

use super::load::Cursors;
use super::state::{State, Told};
use crate::error::StoreError;

/// What goes wrong at the next commit that changes something.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It fails, and nothing is changed.
    BeforeCommit,
    /// It is committed, and the answer is lost.
    AfterCommit,
    /// The sync fails. Nobody sees the change, and nobody is answered, until the store is recovered; then it
    /// is there if it `lands`.
    FailedSync {
        /// Whether it is there after all.
        lands: bool,
    },
    /// The process dies between two commits. What is right has one, and then this is `AfterCommit`; a planted
    /// flaw may have made two of it, and then the second does not happen.
    BetweenCommits,
}

/// The state, and what has gone wrong with it.
#[derive(Debug, Default)]
pub(super) struct World {
    pub(super) state: State,
    pub(super) faults: VecDeque<Fault>,
    pub(super) cursors: Cursors,
    /// Whether a sync failed, and what is there after recovery.
    limbo: Option<Option<Box<State>>>,
}

/// What became of a commit: what watchers are told, and what its caller is told.
pub(super) type Fate = (Told, Result<(), StoreError>);

impl World {
    pub(super) fn with_shards(shards: u32) -> Self {
        let mut world = Self::default();
        world.state.shards_max = shards;
        world
    }

    /// Commits whatever was changed, or fails as it was told to.
    pub(super) fn commit(&mut self) -> Fate {
        if !self.state.is_changed() {
            return (Told::default(), Ok(()));
        }
        match self.faults.pop_front() {
            None => (self.state.keep(), Ok(())),
            Some(Fault::AfterCommit | Fault::BetweenCommits) => (self.state.keep(), Err(unknown())),
            Some(Fault::BeforeCommit) => {
                let told = has(Flaw::NextBeforeCommit).then(|| self.state.clone().keep());
                self.state.undo();
                let what = "the commit failed on request".to_owned();
                (told.unwrap_or_default(), Err(StoreError::Passing { what, source: None }))
            }
            Some(Fault::FailedSync { lands }) => {
                let landed = lands.then(|| {
                    let mut landed = self.state.clone();
                    landed.keep();
                    Box::new(landed)
                });
                self.state.undo();
                self.limbo = Some(landed);
                (Told::default(), Err(unknown()))
            }
        }
    }

    /// Whether the process is to die between two commits. Asked only where a planted flaw makes two of one.
    pub(super) fn dies_between(&mut self) -> bool {
        let dies = self.faults.front() == Some(&Fault::BetweenCommits);
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
