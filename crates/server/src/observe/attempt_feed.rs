//! Attempts as they happen, for `redrive tail`.
//!
//! Nothing is kept unless a client asks: then the last attempts are, for as long as it keeps asking. A client asks again
//! and again from where it was (a long poll), so a slow one misses lines and blocks no attempt.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::Notify;

/// How many attempts are kept for clients that ask.
const KEPT: usize = 2_000;
/// How long attempts are kept after a client has asked last.
const WATCHED: Duration = Duration::from_secs(90);

/// The last attempts, while a client watches.
#[derive(Debug)]
pub(crate) struct AttemptFeed {
    began: Instant,
    /// Until when a client watches, in milliseconds since it began.
    watched_until: AtomicU64,
    lines: Mutex<Lines>,
    news: Notify,
}

#[derive(Debug, Default)]
struct Lines {
    /// The number of the next attempt.
    next: u64,
    last: VecDeque<(u64, Line)>,
}

/// An attempt that ended.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) queue: String,
    pub(crate) tenant: String,
    /// As the API tells it.
    pub(crate) told: Value,
}

impl Default for AttemptFeed {
    fn default() -> Self {
        let (watched_until, lines, news) = Default::default();
        Self { began: Instant::now(), watched_until, lines, news }
    }
}

impl AttemptFeed {
    /// Whether a client watches. Costs nothing.
    pub(crate) fn is_watched(&self) -> bool {
        self.millis(Duration::ZERO) < self.watched_until.load(Ordering::Relaxed)
    }

    fn millis(&self, more: Duration) -> u64 {
        u64::try_from((self.began.elapsed() + more).as_millis()).unwrap_or(u64::MAX)
    }

    /// Notes an attempt that ended.
    pub(crate) fn note(&self, line: Line) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let number = lines.next;
        lines.next += 1;
        lines.last.push_back((number, line));
        if lines.last.len() > KEPT {
            lines.last.pop_front();
        }
        drop(lines);
        self.news.notify_waiters();
    }

    /// The attempts of a queue from a number on, and the number to go on from; waits for one if there is none. Without
    /// a number it begins with the next attempt.
    pub(crate) async fn read(
        &self,
        from: Option<u64>,
        is_asked: impl Fn(&Line) -> bool,
        wait: Duration,
    ) -> (Vec<Value>, u64) {
        let until = tokio::time::Instant::now() + wait;
        self.watched_until.store(self.millis(WATCHED + wait), Ordering::Relaxed);
        let mut from = from;
        loop {
            let mut news = std::pin::pin!(self.news.notified());
            // From here on no news is missed.
            news.as_mut().enable();
            let (found, next) = self.look(from, &is_asked);
            if from.is_none() || !found.is_empty() {
                return (found, next);
            }
            from = Some(next);
            if tokio::time::timeout_at(until, news).await.is_err() {
                return (Vec::new(), next);
            }
        }
    }

    fn look(&self, from: Option<u64>, is_asked: impl Fn(&Line) -> bool) -> (Vec<Value>, u64) {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(from) = from else { return (Vec::new(), lines.next) };
        let fitting = lines.last.iter().filter(|(number, line)| *number >= from && is_asked(line));
        (fitting.map(|(_, line)| line.told.clone()).collect(), lines.next)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn line(queue: &str, n: u64) -> Line {
        Line { queue: queue.to_owned(), tenant: String::new(), told: json!(n) }
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_from_where_it_was_hears_every_attempt_of_its_queue_once() {
        let feed = AttemptFeed::default();
        assert!(!feed.is_watched());
        let second = Duration::from_secs(1);
        let of = |line: &Line| line.queue == "a";
        let (none, from) = feed.read(None, of, second).await;
        assert!(none.is_empty() && feed.is_watched());
        feed.note(line("a", 1));
        feed.note(line("b", 2));
        feed.note(line("a", 3));
        let (some, from) = feed.read(Some(from), of, second).await;
        assert_eq!(some, [json!(1), json!(3)]);
        let (waited, next) = tokio::join!(feed.read(Some(from), of, second), async {
            tokio::task::yield_now().await;
            feed.note(line("a", 4));
        });
        assert_eq!(waited.0, [json!(4)]);
        let () = next;
        let (none, _) = feed.read(Some(waited.1), of, second).await;
        assert!(none.is_empty(), "after a second of nothing it is answered with nothing");
    }
}
