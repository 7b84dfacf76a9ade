//! Notifying the watcher of arrivals, and never after an event's end.
//!
//! A commit becomes visible before its process can notify the watcher. In between the owner may load the event, run it
//! and settle it; a later notification would name an event that has ended. So a commit registers its notification
//! first ([`PendingNotifications::begin`]), and the notification leaves out events that were settled while it was
//! pending.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};

use redrive_core::queue_entry::Seq;
use tokio::sync::Notify;

use crate::store::{Arrivals, Watcher};

/// How this process learns of arrivals, and how it notifies others.
pub(in crate::stores::postgres) struct Notifier {
    pub(in crate::stores::postgres) pending: PendingNotifications,
    pub(in crate::stores::postgres) own: OwnCommits,
    pub(in crate::stores::postgres) watcher: Mutex<Option<Watcher>>,
    /// Whether there are other processes to notify.
    pub(in crate::stores::postgres) has_company: AtomicBool,
    /// A commit that other processes may want to know of.
    pub(in crate::stores::postgres) hint: Notify,
}

impl Default for Notifier {
    /// Until its first look, a process assumes that others share the database.
    fn default() -> Self {
        Self {
            pending: PendingNotifications::default(),
            own: OwnCommits::default(),
            watcher: Mutex::default(),
            has_company: AtomicBool::new(true),
            hint: Notify::new(),
        }
    }
}

/// Pending notifications.
#[derive(Debug, Default)]
pub(in crate::stores::postgres) struct PendingNotifications(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    open: BTreeSet<u64>,
    /// Events settled since the oldest pending notification began, and when.
    settled: HashMap<Seq, u64>,
}

/// A pending notification.
#[derive(Debug)]
pub(in crate::stores::postgres) struct Open<'a> {
    notifications: &'a PendingNotifications,
    number: u64,
}

impl PendingNotifications {
    /// A commit, or a look for arrivals, is about to begin.
    pub(in crate::stores::postgres) fn begin(&self) -> Open<'_> {
        let mut state = self.state();
        state.next += 1;
        let number = state.next;
        state.open.insert(number);
        Open { notifications: self, number }
    }

    /// Events were settled: call it after the commit, and before any call is answered.
    pub(in crate::stores::postgres) fn settled(&self, seqs: impl Iterator<Item = Seq>) {
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
    /// Sends it. The watcher is called under the lock: a concurrent settle is answered after it.
    pub(in crate::stores::postgres) fn tell(self, mut arrivals: Arrivals, watcher: &Watcher) {
        let state = self.notifications.state();
        arrivals.entries.retain(|entry| !state.settled.contains_key(&entry.seq));
        watcher(arrivals);
        drop(state);
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let mut state = self.notifications.state();
        state.open.remove(&self.number);
        match state.open.first().copied() {
            None => state.settled = HashMap::new(),
            Some(oldest) => state.settled.retain(|_, at| *at > oldest),
        }
    }
}

/// The transactions of this process that the watcher was notified of at commit: a look skips them.
#[derive(Debug, Default)]
pub(in crate::stores::postgres) struct OwnCommits(Mutex<BTreeSet<u64>>);

impl OwnCommits {
    /// The watcher was notified of a transaction.
    pub(in crate::stores::postgres) fn add(&self, number: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(number);
    }

    /// The transactions that a look since this snapshot would find, as numbers in text. Transactions that the snapshot
    /// saw are dropped, however long another one stays open.
    pub(in crate::stores::postgres) fn since(&self, snapshot: &str) -> Vec<String> {
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

    use redrive_core::queue_entry::{EventProgress, QueueEntry, StreamId};
    use redrive_core::{Event, Moment};

    use super::*;

    fn entry(seq: u64) -> QueueEntry {
        let at = Moment::from_nanos(1);
        QueueEntry {
            seq: Seq(seq),
            rev: 0,
            stream: StreamId(1),
            shard: 0,
            published: at,
            expires: None,
            event: Arc::new(Event::new("queue", "id")),
            progress: EventProgress::fresh(at),
        }
    }

    #[test]
    fn what_is_settled_while_a_telling_is_open_is_not_told() {
        let notifications = PendingNotifications::default();
        let told = Arc::new(Mutex::new(Vec::new()));
        let hears = Arc::clone(&told);
        let watcher: Watcher = Arc::new(move |arrivals: Arrivals| {
            hears.lock().unwrap().extend(arrivals.entries.iter().map(|entry| entry.seq.0));
        });
        let tell = |open: Open<'_>, seqs: &[u64]| {
            let entries = seqs.iter().map(|seq| entry(*seq)).collect();
            open.tell(Arrivals { entries, ..Arrivals::default() }, &watcher);
        };
        let (first, second) = (notifications.begin(), notifications.begin());
        notifications.settled([Seq(1)].into_iter());
        tell(second, &[2]);
        tell(first, &[1, 3]);
        assert_eq!(*told.lock().unwrap(), [2, 3]);
        assert!(notifications.state().settled.is_empty(), "nothing is remembered without need");
    }

    #[test]
    fn what_a_snapshot_saw_is_not_asked_for_again() {
        let own = OwnCommits::default();
        [3, 5, 7, 9, 12].into_iter().for_each(|number| own.add(number));
        // 3 was left open, 7 is one of ours that was about to commit.
        assert_eq!(own.since("3:10:3,7"), ["3", "7", "12"]);
        assert_eq!(own.since("3:13:"), Vec::<String>::new());
    }
}
