//! Who is told of arrivals, and not after their end.
//!
//! A commit becomes visible before whoever made it can tell of it. In between the owner may load the event, run it and
//! settle it; an arrival that is told then would be of an event that has ended. So whoever is about to commit says so
//! first ([`Tellings::begin`]), and what is settled while such tellings are open is left out of them.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use redrive_core::entry::Seq;

use crate::store::{Arrivals, Watcher};

/// What is about to be told.
#[derive(Debug, Default)]
pub(super) struct Tellings(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    open: BTreeSet<u64>,
    /// What was settled since the oldest open telling began, and when.
    settled: HashMap<Seq, u64>,
}

/// A telling that is open.
#[derive(Debug)]
pub(super) struct Open<'a> {
    tellings: &'a Tellings,
    number: u64,
}

impl Tellings {
    /// Somebody is about to commit or to look for something that is to be told.
    pub(super) fn begin(&self) -> Open<'_> {
        let mut state = self.state();
        state.next += 1;
        let number = state.next;
        state.open.insert(number);
        Open { tellings: self, number }
    }

    /// Events were settled: to be called after the commit, and before anybody is answered.
    pub(super) fn settled(&self, seqs: impl Iterator<Item = Seq>) {
        let mut state = self.state();
        if state.open.is_empty() {
            return;
        }
        state.next += 1;
        let now = state.next;
        state.settled.extend(seqs.map(|seq| (seq, now)));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open<'_> {
    /// Tells it. The watcher is called under the lock: who settles meanwhile is answered after it.
    pub(super) fn tell(self, mut arrivals: Arrivals, watcher: &Watcher) {
        let state = self.tellings.state();
        arrivals.entries.retain(|entry| !state.settled.contains_key(&entry.seq));
        watcher(arrivals);
        drop(state);
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let mut state = self.tellings.state();
        state.open.remove(&self.number);
        match state.open.first().copied() {
            None => state.settled = HashMap::new(),
            Some(oldest) => state.settled.retain(|_, at| *at > oldest),
        }
    }
}

/// The transactions of this process that were told when they were committed: nobody has to find them.
#[derive(Debug, Default)]
pub(super) struct Own(Mutex<BTreeSet<u64>>);

impl Own {
    /// A transaction was told.
    pub(super) fn add(&self, number: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(number);
    }

    /// Those that a look since this snapshot would find, as numbers in text. Of what the snapshot saw nobody asks again,
    /// however long a transaction is left open.
    pub(super) fn since(&self, snapshot: &str) -> Vec<String> {
        let mut parts = snapshot.split(':').skip(1);
        let next = parts.next().and_then(|number| number.parse().ok()).unwrap_or(0);
        let open: BTreeSet<u64> = parts
            .next()
            .into_iter()
            .flat_map(|open| open.split(','))
            .filter_map(|it| it.parse().ok())
            .collect();
        let mut own = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        own.retain(|number| *number >= next || open.contains(number));
        own.iter().map(u64::to_string).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use redrive_core::entry::{Entry, Progress, StreamId};
    use redrive_core::{Event, Moment};

    use super::*;

    fn entry(seq: u64) -> Entry {
        let at = Moment::from_nanos(1);
        Entry {
            seq: Seq(seq),
            rev: 0,
            stream: StreamId(1),
            shard: 0,
            published: at,
            expires: None,
            event: Arc::new(Event::new("queue", "id")),
            progress: Progress::fresh(at),
        }
    }

    #[test]
    fn what_is_settled_while_a_telling_is_open_is_not_told() {
        let tellings = Tellings::default();
        let told = Arc::new(Mutex::new(Vec::new()));
        let hears = Arc::clone(&told);
        let watcher: Watcher = Arc::new(move |arrivals: Arrivals| {
            hears.lock().unwrap().extend(arrivals.entries.iter().map(|entry| entry.seq.0));
        });
        let tell = |open: Open<'_>, seqs: &[u64]| {
            let entries = seqs.iter().map(|seq| entry(*seq)).collect();
            open.tell(Arrivals { entries, ..Arrivals::default() }, &watcher);
        };
        let (first, second) = (tellings.begin(), tellings.begin());
        tellings.settled([Seq(1)].into_iter());
        tell(second, &[2]);
        tell(first, &[1, 3]);
        assert_eq!(*told.lock().unwrap(), [2, 3]);
        assert!(tellings.state().settled.is_empty(), "nothing is remembered for nobody");
    }

    #[test]
    fn what_a_snapshot_saw_is_not_asked_for_again() {
        let own = Own::default();
        [3, 5, 7, 9, 12].into_iter().for_each(|number| own.add(number));
        // 3 was left open, 7 is one of ours that was about to commit.
        assert_eq!(own.since("3:10:3,7"), ["3", "7", "12"]);
        assert_eq!(own.since("3:13:"), Vec::<String>::new());
    }
}
