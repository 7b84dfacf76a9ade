//! Items that are written together, each with its answer or its possible outcome.
//!
//! A batch can be written in part: some of it is committed, the outcome of some is unknown, and the rest is blocked.
//! To go on with it, or with a part of it, the writer has to know which is which: committed items are not written
//! again, and items of unknown outcome are recognised as its own.

use std::fmt::Debug;
use std::sync::Arc;

use crate::error::StoreError;
use crate::stores::postgres::database::Database;
use crate::stores::postgres::faults::Step;

/// An item that is written together with others.
pub(in crate::stores::postgres) trait BatchItem:
    Clone + Debug + Send + Sync + 'static
{
    /// Its answer.
    type Answer: Send + Sync + 'static;
    /// What unanswered commits may have done with it.
    type Doubt: Default + PartialEq + Send + Sync + 'static;

    /// Its size in bytes, roughly.
    fn size(&self) -> usize;

    /// Writes all items of a batch that have no answer. After a fault, the batch has the results so far. `is_shared`:
    /// other calls wait with it, so it waits for a lock only briefly.
    fn write(
        db: &Arc<Database>,
        batch: &mut Batch<Self>,
        is_shared: bool,
    ) -> impl Future<Output = Step<()>> + Send;

    /// The answer of a call whose remaining items are given up, because of an error that changed nothing.
    fn give_up(
        db: &Arc<Database>,
        batch: Batch<Self>,
        error: &StoreError,
    ) -> Result<Vec<Self::Answer>, StoreError>;
}

/// Items that are written together.
#[derive(Debug)]
pub(in crate::stores::postgres) struct Batch<W: BatchItem> {
    pub(in crate::stores::postgres) what: Vec<W>,
    pub(in crate::stores::postgres) answers: Vec<Option<W::Answer>>,
    pub(in crate::stores::postgres) doubts: Vec<W::Doubt>,
}

impl<W: BatchItem> Batch<W> {
    pub(in crate::stores::postgres) fn new(what: Vec<W>) -> Self {
        let answers = what.iter().map(|_| None).collect();
        let doubts = what.iter().map(|_| W::Doubt::default()).collect();
        Self { what, answers, doubts }
    }

    /// Splits it into parts of these sizes, in order.
    pub(in crate::stores::postgres) fn split(
        self,
        counts: impl IntoIterator<Item = usize>,
    ) -> impl Iterator<Item = Self> {
        let Self { what, answers, doubts } = self;
        let (mut what, mut answers, mut doubts) = (what.into_iter(), answers.into_iter(), doubts.into_iter());
        counts.into_iter().map(move |count| Self {
            what: what.by_ref().take(count).collect(),
            answers: answers.by_ref().take(count).collect(),
            doubts: doubts.by_ref().take(count).collect(),
        })
    }

    /// The positions of items without an answer.
    pub(in crate::stores::postgres) fn left(&self) -> Vec<usize> {
        (0..self.what.len()).filter(|at| self.answers[*at].is_none()).collect()
    }

    /// The items at these positions.
    pub(in crate::stores::postgres) fn those(&self, left: &[usize]) -> Vec<&W> {
        left.iter().map(|at| &self.what[*at]).collect()
    }

    /// Whether some of them have their answer.
    pub(in crate::stores::postgres) fn is_begun(&self) -> bool {
        self.answers.iter().any(Option::is_some)
    }

    /// Whether some items without an answer may have been written.
    pub(in crate::stores::postgres) fn is_doubted(&self) -> bool {
        let none = W::Doubt::default();
        self.answers.iter().zip(&self.doubts).any(|(answer, doubt)| answer.is_none() && *doubt != none)
    }

    /// Answers some of the items at these positions.
    pub(in crate::stores::postgres) fn answer(
        &mut self,
        left: &[usize],
        answers: impl IntoIterator<Item = Option<W::Answer>>,
    ) {
        for (at, answer) in left.iter().zip(answers) {
            self.answers[*at] = answer;
        }
    }

    /// The answers, once all of them are there.
    pub(in crate::stores::postgres) fn answered(&mut self) -> Option<Vec<W::Answer>> {
        if self.answers.iter().all(Option::is_some) {
            return Some(self.answers.drain(..).flatten().collect());
        }
        None
    }
}
