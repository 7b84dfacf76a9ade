//! Which input a scheduler receives directly after which other, in the same shard: the coverage of message
//! order.
//!
//! Bugs hide in rare orders, such as the answer to a dispatch note that comes after the shard was lost and
//! taken again. Each ordered pair of kinds is therefore counted, and a pair that no seed has deserves a look:
//! either it is impossible, or the simulation is blind to it. Counting costs an addition for each input:
//! kinds are numbers, and the counts are one array.

use std::fmt;

use redrive_core::queue_entry::{FencingToken, SettleResult};
use redrive_core::scheduler::{FlowKey, Input};

/// The kinds of inputs. Inputs from an earlier ownership of the shard are kinds of their own.
const KINDS: [&str; 28] = [
    "Own",
    "Arrived",
    "Missed",
    "Recall",
    "Ruled",
    "Drain",
    "Loaded",
    "LoadFailed",
    "Noted",
    "NoteFailed",
    "Lost",
    "Ended",
    "Settled applied",
    "Settled stale",
    "Settled fenced",
    "SettleFailed",
    "GiveBack",
    "old Loaded",
    "old LoadFailed",
    "old Noted",
    "old NoteFailed",
    "old Lost",
    "old Ended",
    "old Settled applied",
    "old Settled stale",
    "old Settled fenced",
    "old SettleFailed",
    "old GiveBack",
];

/// The distance from a kind to the same kind of an earlier ownership.
const OLD: u8 = 11;
/// The size of a kind's row of counts; the last entry is "nothing before".
const ROW: usize = 32;
const NOTHING: u8 = 31;
/// More shards than any plan has.
const SHARDS_MAX: usize = 4;
/// A pair that was seen less often is rare.
const RARE: u64 = 10;

/// How often each input followed each other one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessageOrder(Vec<u64>);

/// The last input of each shard that one scheduler received.
#[derive(Debug, Clone, Copy)]
pub(super) struct LastHeard([u8; SHARDS_MAX]);

impl Default for LastHeard {
    fn default() -> Self {
        Self([NOTHING; SHARDS_MAX])
    }
}

impl MessageOrder {
    /// Counts an input that is about to be delivered to a scheduler with these fencing tokens.
    pub(super) fn hear(&mut self, last: &mut LastHeard, input: &Input, tokens: &[FencingToken]) {
        if self.0.is_empty() {
            self.0 = vec![0; ROW * ROW];
        }
        let of = |kind: u8, token: FencingToken| placed(kind, token.shard, token.epoch, tokens);
        let of_flow = |kind: u8, flow: &FlowKey| placed(kind, flow.shard, flow.epoch, tokens);
        let (kind, shard) = match input {
            Input::Own(taken) => (0, taken.token.shard),
            Input::Arrived(entries) => {
                // Once for each shard, as long as the entries of a shard come together.
                let mut before = None;
                for entry in entries {
                    if before.replace(entry.shard) != Some(entry.shard) {
                        self.count(last, 1, entry.shard);
                    }
                }
                return;
            }
            Input::Missed(_) => return self.count_all(last, 2, tokens),
            Input::Recall => return self.count_all(last, 3, tokens),
            Input::Ruled(_) => return self.count_all(last, 4, tokens),
            Input::Drain => return self.count_all(last, 5, tokens),
            Input::Loaded(load, _) => of_flow(6, &load.flow),
            Input::LoadFailed(load) => of_flow(7, &load.flow),
            Input::Noted(note) => of(8, note.token),
            Input::NoteFailed(note) => of(9, note.token),
            Input::Lost(token) => of(10, *token),
            Input::Ended { token, .. } => of(11, *token),
            Input::Settled { token, settled: SettleResult::Applied { .. }, .. } => of(12, *token),
            Input::Settled { token, settled: SettleResult::Stale, .. } => of(13, *token),
            Input::Settled { token, settled: SettleResult::Fenced, .. } => of(14, *token),
            Input::SettleFailed { token, .. } => of(15, *token),
            Input::GiveBack(token) => of(16, *token),
            // From the watchdog, which runs only while nothing else is on its way.
            Input::Checked(..) => return,
        };
        self.count(last, kind, shard);
    }

    fn count_all(&mut self, last: &mut LastHeard, kind: u8, tokens: &[FencingToken]) {
        tokens.iter().for_each(|token| self.count(last, kind, token.shard));
    }

    fn count(&mut self, last: &mut LastHeard, kind: u8, shard: u32) {
        let last = &mut last.0[shard as usize % SHARDS_MAX];
        self.0[usize::from(std::mem::replace(last, kind)) * ROW + usize::from(kind)] += 1;
    }

    /// Adds the counts of another run.
    pub(super) fn add(&mut self, other: &Self) {
        if self.0.is_empty() {
            self.0.clone_from(&other.0);
            return;
        }
        self.0.iter_mut().zip(&other.0).for_each(|(sum, more)| *sum += more);
    }

    /// How often one kind of input followed another, by their numbers.
    fn seen(&self, first: usize, then: usize) -> u64 {
        self.0.get(first * ROW + then).copied().unwrap_or(0)
    }

    /// How many pairs were seen, and how many there are.
    #[must_use]
    pub fn coverage(&self) -> (usize, usize) {
        let seen = |(first, then)| self.seen(first, then) > 0;
        (pairs().filter(|pair| seen(*pair)).count(), pairs().count())
    }
}

/// The kind for its shard: of the current ownership, or of an earlier one.
fn placed(kind: u8, shard: u32, epoch: u64, tokens: &[FencingToken]) -> (u8, u32) {
    let is_present = tokens.iter().any(|token| token.shard == shard && token.epoch == epoch);
    (if is_present { kind } else { kind + OLD }, shard)
}

fn pairs() -> impl Iterator<Item = (usize, usize)> {
    (0..KINDS.len()).flat_map(|first| (0..KINDS.len()).map(move |then| (first, then)))
}

impl fmt::Display for MessageOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seen, all) = self.coverage();
        let rare = pairs().filter(|(first, then)| (1..RARE).contains(&self.seen(*first, *then))).count();
        writeln!(
            f,
            "message order: {seen} of {all} pairs of inputs seen, {rare} of them fewer than {RARE} times"
        )?;
        for (title, wanted) in [("never seen", 0..1), ("seen rarely", 1..RARE)] {
            writeln!(f, "\n  {title}, by the first of the pair")?;
            for (first, name) in KINDS.iter().enumerate() {
                let word = |(then, name): (usize, &&str)| {
                    let seen = Some(self.seen(first, then)).filter(|seen| wanted.contains(seen))?;
                    Some(if seen > 0 { format!("{name} ({seen})") } else { (*name).to_owned() })
                };
                let words: Vec<String> = KINDS.iter().enumerate().filter_map(word).collect();
                match words.len() {
                    0 => {}
                    count if count == KINDS.len() => writeln!(f, "    {name:<20} then anything")?,
                    _ => writeln!(f, "    {name:<20} then {}", words.join(", "))?,
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use redrive_core::scheduler::NoteId;

    use super::*;

    #[test]
    fn inputs_of_an_earlier_epoch_are_told_apart() {
        let token = |epoch| FencingToken { shard: 1, epoch, incarnation: 0 };
        let (mut order, mut last) = (MessageOrder::default(), LastHeard::default());
        let noted = |epoch| Input::Noted(NoteId { token: token(epoch), number: 1 });
        for input in [Input::Recall, noted(7), noted(8), noted(7)] {
            order.hear(&mut last, &input, &[token(8)]);
        }
        assert_eq!(order.coverage().0, 3);
        let number = |kind: &str| KINDS.iter().position(|other| *other == kind).unwrap();
        for (first, then) in [("Recall", "old Noted"), ("old Noted", "Noted"), ("Noted", "old Noted")] {
            assert_eq!(order.seen(number(first), number(then)), 1, "{first}, {then}");
        }
        assert!(order.to_string().contains("Recall               then Own, Arrived"), "{order}");
    }

    #[test]
    fn old_kinds_follow_the_present_ones() {
        for (kind, name) in KINDS.iter().enumerate().skip(6).take(usize::from(OLD)) {
            assert_eq!(format!("old {name}"), KINDS[kind + usize::from(OLD)]);
        }
    }
}
