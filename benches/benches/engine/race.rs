//! Contenders that take turns, round after round, and the results.

use std::path::Path;
use std::time::Duration;

use redrive_benches::measure::median;
use redrive_benches::syncs;
use redrive_benches::turn::{Outcome, Publisher, Work};

use crate::contender::{Batch, Contender};

/// Contenders and duration.
#[derive(Debug)]
pub(crate) struct Race {
    pub(crate) title: String,
    pub(crate) work: Work,
    pub(crate) callers: usize,
    pub(crate) field: Vec<Contender>,
}

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    /// How often all contenders take their turn.
    pub(crate) rounds: usize,
    /// How long one turn is.
    pub(crate) time: Duration,
}

/// A contender's figures.
#[derive(Debug, Clone)]
pub(crate) struct Figures {
    pub(crate) who: Contender,
    /// Done in a second, round by round.
    pub(crate) rates: Vec<f64>,
    /// Writes in one transaction, the median of the rounds.
    pub(crate) batch: f64,
    /// Syncs in a second: as many for a transaction as in a traced turn, at the rate of the untraced ones. None
    /// where there is no tracer.
    pub(crate) syncs: Option<f64>,
    pub(crate) settings: String,
}

impl Figures {
    /// Done in a second, the median of the rounds.
    pub(crate) fn rate(&self) -> f64 {
        median(self.rates.iter().copied())
    }

    /// How much faster than another one. Compared round by round, and the median of that: a shared disk's
    /// weather may change tenfold within a run, but seldom within a round.
    pub(crate) fn of(&self, other: &Self) -> f64 {
        median(self.rates.iter().zip(&other.rates).map(|(rate, other)| rate / other))
    }
}

impl Race {
    /// Runs it.
    pub(crate) fn run(&self, plan: Plan, base: &Path) -> Result<Vec<Figures>, String> {
        eprintln!("bench: {}", self.title);
        let mut outcomes: Vec<Vec<Outcome>> = self.field.iter().map(|_| Vec::new()).collect();
        let mut batches = Batches { each: 1, bulk: 1 };
        for round in 0..plan.rounds {
            for at in self.order(round) {
                let who = self.field[at];
                let outcome = who.turn(self.work, self.callers, batches.of(who), plan.time).run(base)?;
                if let Contender::Ours(publisher) = who {
                    *batches.of_ours(publisher) = whole(outcome.batch());
                }
                outcomes[at].push(outcome);
            }
        }
        let mut figures = Vec::new();
        for (who, outcomes) in self.field.iter().zip(outcomes) {
            let rates: Vec<f64> = outcomes.iter().map(Outcome::rate).collect();
            let transactions = median(outcomes.iter().map(Outcome::transaction_rate));
            let syncs_each = self.syncs_each(*who, &mut batches, plan, base)?;
            figures.push(Figures {
                who: *who,
                rates,
                syncs: syncs_each.map(|each| each * transactions),
                batch: median(outcomes.iter().map(Outcome::batch)),
                settings: outcomes[0].settings.clone(),
            });
        }
        Ok(figures)
    }

    /// Another contender starts every round, so that none always follows the same neighbour; but the baseline with
    /// our batch size follows us at once, under the same conditions.
    fn order(&self, round: usize) -> Vec<usize> {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for (at, who) in self.field.iter().enumerate() {
            match groups.last_mut() {
                Some(group) if matches!(who, Contender::Raw(Batch::AsOurs(_))) => group.push(at),
                _ => groups.push(vec![at]),
            }
        }
        let first = round % groups.len();
        groups.rotate_left(first);
        groups.concat()
    }

    fn syncs_each(
        &self,
        who: Contender,
        batches: &mut Batches,
        plan: Plan,
        base: &Path,
    ) -> Result<Option<f64>, String> {
        if !syncs::can_be_counted() {
            return Ok(None);
        }
        let time = plan.time.min(Duration::from_secs(1));
        who.turn(self.work, self.callers, batches.of(who), time).syncs_each(base).map(Some)
    }
}

/// The batches that ours had in its last turns, one by one and in bulk.
struct Batches {
    each: usize,
    bulk: usize,
}

impl Batches {
    fn of_ours(&mut self, publisher: Publisher) -> &mut usize {
        match publisher {
            Publisher::Each => &mut self.each,
            Publisher::Bulk => &mut self.bulk,
        }
    }

    /// The batch size for a contender that takes one.
    fn of(&mut self, who: Contender) -> usize {
        match who {
            Contender::Raw(Batch::Of(batch)) => batch,
            Contender::Raw(Batch::AsOurs(publisher)) => *self.of_ours(publisher),
            Contender::Ours(_) | Contender::Rival(..) => self.each,
        }
    }
}

/// A batch of at least one.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a batch is a small positive number"
)]
fn whole(batch: f64) -> usize {
    batch.round().max(1.0) as usize
}
