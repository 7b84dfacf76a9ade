//! Messages that wait for their due time, and the choice of a tier.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Duration;

use redrive_core::Moment;

/// Items by due time; items of one due time leave in the order in which they came.
#[derive(Debug)]
pub struct DueQueue<T> {
    heap: BinaryHeap<Entry<T>>,
    count: u64,
}

#[derive(Debug)]
struct Entry<T> {
    due: Moment,
    number: u64,
    item: T,
}

impl<T> Default for DueQueue<T> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), count: 0 }
    }
}

impl<T> DueQueue<T> {
    /// Adds an item.
    pub fn push(&mut self, due: Moment, item: T) {
        self.count += 1;
        self.heap.push(Entry { due, number: self.count, item });
    }

    /// Takes the first item that is due at `now`, never earlier.
    pub fn pop(&mut self, now: Moment) -> Option<(Moment, T)> {
        if self.next_due()? > now {
            return None;
        }
        self.heap.pop().map(|entry| (entry.due, entry.item))
    }

    /// When the first item is due.
    #[must_use]
    pub fn next_due(&self) -> Option<Moment> {
        self.heap.peek().map(|entry| entry.due)
    }

    /// Keeps the items that `keep` wants.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.heap.retain(|entry| keep(&entry.item));
    }

    /// How many items wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The heap's largest is the one that is due first.
impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.due, other.number).cmp(&(self.due, self.number))
    }
}

/// The tier for a wait: the shortest one that is at least as long, or the longest. A tier's consumer fires by due time,
/// so the choice never changes when a message is due; it keeps long waits out of the read-ahead of short ones.
///
/// `tiers` are sorted and not empty.
#[must_use]
pub fn tier_for(tiers: &[Duration], wait: Duration) -> usize {
    tiers.iter().position(|tier| *tier >= wait).unwrap_or(tiers.len().saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Moment {
        Moment::default() + Duration::from_secs(secs)
    }

    #[test]
    fn items_leave_by_due_time_and_never_early() {
        let mut queue = DueQueue::default();
        for (due, item) in [(60, "long"), (10, "short"), (10, "second"), (30, "middle")] {
            queue.push(at(due), item);
        }
        assert_eq!(queue.pop(at(9)), None);
        let mut left = Vec::new();
        for now in 0..=60 {
            while let Some((due, item)) = queue.pop(at(now)) {
                assert_eq!(due, at(now));
                left.push(item);
            }
        }
        assert_eq!(left, ["short", "second", "middle", "long"]);
    }

    #[test]
    fn a_wait_goes_into_the_shortest_tier_that_holds_it() {
        let tiers = [10, 60, 600].map(Duration::from_secs);
        for (wait, tier) in [(0, 0), (10, 0), (11, 1), (60, 1), (61, 2), (600, 2), (6_000, 2)] {
            assert_eq!(tier_for(&tiers, Duration::from_secs(wait)), tier, "{wait} s");
        }
    }
}
