//! Things that are written together, with what is known of each: its answer, or what may have been done with it.
//!
//! A batch can be written in part: some of it is committed, of some it is not known, and the rest is in somebody's way.
//! Whoever goes on with it, or with a part of it, has to know which is which: what is committed is not written again, and
//! what may be is known again as one's own.

use std::fmt::Debug;
use std::sync::Arc;

use super::faults::Step;
use super::office::Office;
use crate::error::StoreError;

/// Something that is written together with others.
pub(super) trait Piece: Clone + Debug + Send + Sync + 'static {
    /// What is said of it.
    type Answer: Send + Sync + 'static;
    /// What commits that were not answered may have done with it.
    type Doubt: Default + PartialEq + Send + Sync + 'static;

    /// About how many bytes it is.
    fn size(&self) -> usize;

    /// Writes whatever of a batch has no answer. After a fault, what was done is in the batch. `is_shared`: others wait
    /// with it, so it waits for somebody's lock only shortly.
    fn write(
        office: &Arc<Office>,
        batch: &mut Batch<Self>,
        is_shared: bool,
    ) -> impl Future<Output = Step<()>> + Send;

    /// What is said of a call where nobody goes on with the rest of it, because of an error that changed nothing.
    fn give_up(
        office: &Arc<Office>,
        batch: Batch<Self>,
        error: &StoreError,
    ) -> Result<Vec<Self::Answer>, StoreError>;
}

/// Things that are written together.
#[derive(Debug)]
pub(super) struct Batch<W: Piece> {
    pub(super) what: Vec<W>,
    pub(super) answers: Vec<Option<W::Answer>>,
    pub(super) doubts: Vec<W::Doubt>,
}

impl<W: Piece> Batch<W> {
    pub(super) fn new(what: Vec<W>) -> Self {
        let answers = what.iter().map(|_| None).collect();
        let doubts = what.iter().map(|_| W::Doubt::default()).collect();
        Self { what, answers, doubts }
    }

    /// So many of them for each, in their order.
    pub(super) fn split(self, counts: impl IntoIterator<Item = usize>) -> impl Iterator<Item = Self> {
        let Self { what, answers, doubts } = self;
        let (mut what, mut answers, mut doubts) = (what.into_iter(), answers.into_iter(), doubts.into_iter());
        counts.into_iter().map(move |count| Self {
            what: what.by_ref().take(count).collect(),
            answers: answers.by_ref().take(count).collect(),
            doubts: doubts.by_ref().take(count).collect(),
        })
    }

    /// The places of those that have no answer.
    pub(super) fn left(&self) -> Vec<usize> {
        (0..self.what.len()).filter(|at| self.answers[*at].is_none()).collect()
    }

    /// Those at these places.
    pub(super) fn those(&self, left: &[usize]) -> Vec<&W> {
        left.iter().map(|at| &self.what[*at]).collect()
    }

    /// Whether some of them have their answer.
    pub(super) fn is_begun(&self) -> bool {
        self.answers.iter().any(Option::is_some)
    }

    /// Whether some of those that have no answer may have been written.
    pub(super) fn is_doubted(&self) -> bool {
        let none = W::Doubt::default();
        self.answers.iter().zip(&self.doubts).any(|(answer, doubt)| answer.is_none() && *doubt != none)
    }

    /// Answers those at these places, or some of them.
    pub(super) fn answer(&mut self, left: &[usize], answers: impl IntoIterator<Item = Option<W::Answer>>) {
        for (at, answer) in left.iter().zip(answers) {
            self.answers[*at] = answer;
        }
    }

    /// The answers, when all of them are there.
    pub(super) fn answered(&mut self) -> Option<Vec<W::Answer>> {
        if self.answers.iter().all(Option::is_some) {
            return Some(self.answers.drain(..).flatten().collect());
        }
        None
    }
}
