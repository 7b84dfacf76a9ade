//! Workers that wait for events.
//!
//! Each look into the store is a commit, and a waiting worker would look all the time. So workers with the same
//! target share a group, and one look counts for all of them. While the queue is known to be empty, the group looks
//! again only when something is published or settled here, when an event becomes due, or after
//! [a while](IDLE), because others write to the store too. Looks that find nothing are limited to
//! [five a second](EMPTY_EVERY) per group, however many workers wait.
//!
//! A worker that disconnects while waiting is dropped: no event is leased for a connection known to be closed. The
//! remaining gap is between a look and the arrival of its response. Events leased in that gap are attempted again
//! when their lease ends.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redrive::engine::lease::{Lease, LeasedBatch};
use tokio::sync::watch;
use tokio::time::Instant;

/// Looks that find nothing: one in this time, over any longer time.
const EMPTY_EVERY: Duration = Duration::from_millis(200);
/// How many of them may follow each other immediately.
const EMPTY_BURST: u32 = 5;
/// How long nothing is taken for nothing without another look.
const IDLE: Duration = Duration::from_secs(1);
/// Concurrent looks per group while more is available than one look takes. They share commits.
const LOOKS_MAX: u32 = 16;
/// Maximum number of groups. Beyond, groups without waiters are dropped, at the cost of one look each.
const LINES_MAX: usize = 4096;

/// What a worker waits for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct PollTarget {
    pub(crate) queue: String,
    pub(crate) tenant: Option<String>,
}

/// All lines.
#[derive(Debug, Default)]
pub(crate) struct LongPolls {
    lines: Mutex<HashMap<PollTarget, Arc<Waiters>>>,
    closed: watch::Sender<bool>,
}

/// The waiters of one target.
#[derive(Debug, Default)]
struct Waiters {
    /// Counts events in the queue, and notifies the waiters.
    news: watch::Sender<u64>,
    seen: Mutex<QueueView>,
}

/// The shared knowledge of a group.
#[derive(Debug, Default)]
struct QueueView {
    /// Set if the queue is known to be empty.
    nothing: Option<KnownEmpty>,
    /// Looks in progress.
    looking: u32,
    /// Whether the last look left something.
    more: bool,
    /// Paces the looks that find nothing.
    paid_until: Option<Instant>,
}

/// That nothing is there.
#[derive(Debug, Clone, Copy)]
struct KnownEmpty {
    /// The count of notifications at that time.
    heard: u64,
    /// Until when that can be believed.
    until: Instant,
}

/// What to do next.
#[derive(Debug, PartialEq)]
enum NextStep {
    Look,
    /// Another waiter is looking and will report.
    Hear,
    /// Nothing is there until then.
    Sleep(Instant),
}

impl LongPolls {
    /// Something happened in a queue: there may be events to lease.
    pub(crate) fn ring(&self, queue: &str) {
        for (wanted, line) in self.lines().iter() {
            if wanted.queue == queue {
                line.news.send_modify(|news| *news += 1);
            }
        }
    }

    /// How many wait for events of a queue.
    pub(crate) fn waiting(&self, queue: &str) -> usize {
        let lines = self.lines();
        let of_queue = lines.iter().filter(|(wanted, _)| wanted.queue == queue);
        of_queue.map(|(_, line)| line.news.receiver_count()).sum()
    }

    /// Wakes all waiters, and turns later ones away.
    pub(crate) fn close(&self) {
        self.closed.send_replace(true);
    }

    /// What `look` finds, as soon as it finds something; nothing after `wait`.
    pub(crate) async fn fetch<L, F, R, E>(
        &self,
        wanted: PollTarget,
        wait: Duration,
        mut look: L,
    ) -> Result<Option<(Vec<Lease>, R)>, E>
    where
        L: FnMut() -> F,
        F: Future<Output = Result<(LeasedBatch, R), E>>,
    {
        let until = Instant::now() + wait;
        let line = self.line(wanted);
        let (mut news, mut closed) = (line.news.subscribe(), self.closed.subscribe());
        while !*closed.borrow() {
            let heard = *news.borrow_and_update();
            let next = line.seen().next(heard, Instant::now());
            let wake = match next {
                NextStep::Look => {
                    let looking = FetchGuard(&line);
                    let (fetched, rest) = look().await?;
                    line.seen().note(heard, &fetched, Instant::now());
                    drop(looking);
                    if !fetched.leases.is_empty() {
                        return Ok(Some((fetched.leases, rest)));
                    }
                    continue;
                }
                NextStep::Hear => None,
                NextStep::Sleep(wake) => Some(wake),
            };
            if Instant::now() >= until && wake.is_some() {
                break;
            }
            // A look in progress ends soon, and a worker that does not wait still gets its result.
            let wake = wake.map_or(until + IDLE, |wake| wake.min(until));
            tokio::select! {
                _ = news.changed() => {}
                () = tokio::time::sleep_until(wake) => if next == NextStep::Hear { break },
                _ = closed.wait_for(|closed| *closed) => {}
            }
        }
        Ok(None)
    }

    fn line(&self, wanted: PollTarget) -> Arc<Waiters> {
        let mut lines = self.lines();
        if lines.len() >= LINES_MAX && !lines.contains_key(&wanted) {
            lines.retain(|_, line| Arc::strong_count(line) > 1);
        }
        lines.entry(wanted).or_default().clone()
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<PollTarget, Arc<Waiters>>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiters {
    fn seen(&self) -> MutexGuard<'_, QueueView> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A look in progress. It ends also if its worker disconnects; then the next one looks.
struct FetchGuard<'a>(&'a Waiters);

impl Drop for FetchGuard<'_> {
    fn drop(&mut self) {
        self.0.seen().looking -= 1;
        // Nothing happened in the queue, but the shared knowledge changed.
        self.0.news.send_modify(|_| {});
    }
}

impl QueueView {
    /// The next step of a waiter that has seen `heard` notifications. A look is counted.
    fn next(&mut self, heard: u64, now: Instant) -> NextStep {
        if self.looking > 0 && !(self.more && self.looking < LOOKS_MAX) {
            return NextStep::Hear;
        }
        let believed = self.nothing.filter(|nothing| nothing.heard == heard).map(|nothing| nothing.until);
        let burst = EMPTY_EVERY * (EMPTY_BURST - 1);
        let allowed = self.paid_until.and_then(|paid| paid.checked_sub(burst));
        match believed.max(allowed).filter(|wake| *wake > now) {
            Some(wake) if !self.more => NextStep::Sleep(wake),
            _ => {
                self.looking += 1;
                NextStep::Look
            }
        }
    }

    /// Records the result of a look.
    fn note(&mut self, heard: u64, fetched: &LeasedBatch, now: Instant) {
        let found = !fetched.leases.is_empty();
        let is_due = fetched.next.is_some_and(|next| next.is_zero());
        self.more = found && is_due;
        let until = now + fetched.next.map_or(IDLE, |next| next.min(IDLE));
        self.nothing = (!is_due).then_some(KnownEmpty { heard, until });
        if !found {
            let from = self.paid_until.map_or(now, |paid| paid.max(now));
            self.paid_until = Some(from + EMPTY_EVERY);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use redrive::{Event, Redrive};

    use super::*;

    /// A queue in memory that counts the looks.
    struct Hall {
        redrive: Redrive,
        lines: LongPolls,
        looks: AtomicU32,
    }

    impl Hall {
        async fn open() -> Arc<Self> {
            let redrive = redrive::testing::memory();
            redrive.queue("jobs").pull().await.unwrap();
            Arc::new(Self { redrive, lines: LongPolls::default(), looks: AtomicU32::new(0) })
        }

        async fn fetch(self: Arc<Self>, wait: Duration) -> Vec<String> {
            let wanted = PollTarget { queue: "jobs".to_owned(), tenant: None };
            let look = async || {
                self.looks.fetch_add(1, Ordering::Relaxed);
                let limits = redrive::engine::lease::LeaseLimits { events: 1, ..Default::default() };
                self.redrive.lease_for("jobs", None, limits, MINUTE).await.map(|fetched| (fetched, ()))
            };
            let found = self.lines.fetch(wanted, wait, look).await.unwrap();
            found.map_or(Vec::new(), |(leases, ())| {
                leases.iter().map(|lease| lease.event.id.clone()).collect()
            })
        }

        async fn publish(&self, ids: &[&str]) {
            self.redrive.publish_all(ids.iter().map(|id| Event::new("jobs", *id))).await.unwrap();
            self.lines.ring("jobs");
        }

        fn looks(&self) -> u32 {
            self.looks.swap(0, Ordering::Relaxed)
        }

        async fn until_waiting(&self, count: usize) {
            while self.lines.waiting("jobs") != count {
                tokio::task::yield_now().await;
            }
        }
    }

    const MINUTE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_hundred_that_wait_look_as_often_as_one() {
        for workers in [1, 100] {
            let hall = Hall::open().await;
            let waiting: Vec<_> = (0..workers).map(|_| tokio::spawn(hall.clone().fetch(MINUTE))).collect();
            for worker in waiting {
                assert_eq!(worker.await.unwrap(), [""; 0]);
            }
            let looks = hall.looks();
            assert!((55..=65).contains(&looks), "{workers} workers looked {looks} times in a minute");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn bells_for_nothing_are_heeded_five_times_a_second() {
        let hall = Hall::open().await;
        let waiting: Vec<_> = (0..10).map(|_| tokio::spawn(hall.clone().fetch(MINUTE))).collect();
        hall.until_waiting(10).await;
        for _ in 0..1000 {
            hall.lines.ring("jobs");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let looks = hall.looks();
        assert!((45..=56).contains(&looks), "{looks} looks in ten seconds");
        hall.lines.close();
        for worker in waiting {
            assert_eq!(worker.await.unwrap(), [""; 0]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_published_is_there_at_once_and_for_everybody() {
        let hall = Hall::open().await;
        let waiting: Vec<_> = (0..5).map(|_| tokio::spawn(hall.clone().fetch(MINUTE))).collect();
        hall.until_waiting(5).await;
        let before = Instant::now();
        hall.publish(&["1", "2", "3"]).await;
        hall.until_waiting(2).await;
        hall.publish(&["4", "5"]).await;
        let mut ids = Vec::new();
        for worker in waiting {
            ids.extend(worker.await.unwrap());
        }
        ids.sort();
        assert_eq!((ids.join(""), before.elapsed()), ("12345".to_owned(), Duration::ZERO));
        let looks = hall.looks();
        assert!(looks <= 8, "{looks} looks for five events");
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_wait_nothing_is_waited_for() {
        let hall = Hall::open().await;
        hall.publish(&["1", "2"]).await;
        let before = Instant::now();
        for ids in [&["1"][..], &["2"], &[], &[]] {
            assert_eq!(hall.clone().fetch(Duration::ZERO).await, ids);
        }
        assert_eq!(
            (hall.looks(), before.elapsed()),
            (2, Duration::ZERO),
            "the second told that there is no more"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn who_leaves_during_a_look_does_not_hold_up_the_next() {
        let hall = Hall::open().await;
        let wanted = || PollTarget { queue: "jobs".to_owned(), tenant: None };
        let stuck = hall.lines.fetch(wanted(), MINUTE, std::future::pending::<Result<(LeasedBatch, ()), ()>>);
        assert!(tokio::time::timeout(Duration::ZERO, stuck).await.is_err());
        let hall = hall.clone();
        hall.publish(&["1"]).await;
        assert_eq!(hall.fetch(MINUTE).await, ["1"]);
    }
}
