//! Contenders that take turns, round after round, and the results.

use std::time::Duration;

use redrive_benches::measure::median;
use redrive_benches::turn::{Outcome, Publisher};

use crate::contender::Contender;
use crate::pg_server::PgServer;
use crate::turn_args::TurnArgs;

/// Who does what.
#[derive(Debug)]
pub(crate) struct Race {
    pub(crate) title: String,
    /// How many wait when the clock starts, where it runs until none does.
    pub(crate) waiting: Option<u64>,
    pub(crate) field: Vec<Contender>,
}

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) rounds: usize,
    pub(crate) time: Duration,
}

/// A contender's figures.
#[derive(Debug, Clone)]
pub(crate) struct Figures {
    pub(crate) name: String,
    pub(crate) who: Option<Contender>,
    /// Done in a second, round by round.
    pub(crate) rates: Vec<f64>,
    /// Writes in one transaction, the median of the rounds.
    pub(crate) batch: f64,
    pub(crate) settings: String,
}

impl Figures {
    pub(crate) fn of_turns(name: String, who: Option<Contender>, turns: &[Outcome]) -> Self {
        Self {
            name,
            who,
            rates: turns.iter().map(Outcome::rate).collect(),
            batch: median(turns.iter().map(Outcome::batch)),
            settings: turns.first().map(|turn| turn.settings.clone()).unwrap_or_default(),
        }
    }

    /// Done in a second, the median of the rounds.
    pub(crate) fn rate(&self) -> f64 {
        median(self.rates.iter().copied())
    }

    /// How much faster than another one: round by round, and the median of that.
    pub(crate) fn of(&self, other: &Self) -> f64 {
        median(self.rates.iter().zip(&other.rates).map(|(rate, other)| rate / other))
    }
}

impl Race {
    pub(crate) fn run(&self, plan: Plan, place: &PgServer) -> Result<Vec<Figures>, String> {
        eprintln!("bench: {}", self.title);
        let mut turns: Vec<Vec<Outcome>> = self.field.iter().map(|_| Vec::new()).collect();
        // The batch that ours had last, by how they were published and by how many nodes.
        let mut batches = std::collections::HashMap::new();
        for round in 0..plan.rounds {
            for at in self.order(round) {
                let who = self.field[at];
                let batch = match who {
                    Contender::Raw(publisher, nodes) => {
                        batches.get(&(publisher == Publisher::Bulk, nodes)).copied()
                    }
                    _ => None,
                };
                let told = TurnArgs { waiting: self.waiting, ..who.told(batch.unwrap_or(1), plan.time) };
                let outcome = who.run_in(place, told)?;
                if let Contender::Ours(publisher, nodes) = who {
                    batches.insert((publisher == Publisher::Bulk, nodes), whole(outcome.batch()));
                }
                turns[at].push(outcome);
            }
        }
        let sides = self.field.iter().zip(turns);
        Ok(sides.map(|(who, turns)| Figures::of_turns(who.name(), Some(*who), &turns)).collect())
    }

    /// Another contender starts every round, so that none always follows the same neighbour; but the baseline follows
    /// us at once, with our batch size and under the same conditions.
    fn order(&self, round: usize) -> Vec<usize> {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for (at, who) in self.field.iter().enumerate() {
            match groups.last_mut() {
                Some(group) if matches!(who, Contender::Raw(..)) => group.push(at),
                _ => groups.push(vec![at]),
            }
        }
        let first = round % groups.len();
        groups.rotate_left(first);
        groups.concat()
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
