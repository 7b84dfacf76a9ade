//! The promises of every dedupe window, one function each: the rules of claims and commits (P11), wherever
//! the ids are kept.
//!
//! A backend passes in how to open one; [`window_tests!`](crate::window_tests) makes a test of every promise.
//! The test passes in the time, and nothing sleeps.

#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "this is test code: a panic is its way to fail"
)]

use std::sync::{Arc, Barrier};
use std::time::Duration;

use redrive_core::Moment;
use redrive_store::window::{
    ClaimResult, ClaimTicket, DedupeWindow, IdMark, WindowClaimError, WindowCommitError, WindowSettings,
};

/// How to open a window under test: empty, with these bounds. Its storage is returned beside it.
pub type Open<T> = fn(WindowSettings) -> (DedupeWindow, T);

/// Makes a test of every promise.
#[macro_export]
macro_rules! window_tests {
    ($open:path) => {
        $crate::window_tests! { $open;
            the_first_is_the_first_and_the_second_hears_so,
            two_at_once_get_one_claim,
            what_was_committed_at_once_is_all_seen,
            an_abandoned_claim_runs_out,
            a_released_claim_is_free_at_once,
            a_late_commit_counts_where_nobody_took_the_id,
            a_late_commit_is_refused_where_somebody_has_the_id,
            a_late_commit_hears_of_somebody_elses,
            a_late_release_takes_nothing_from_the_next,
            an_id_is_remembered_for_its_time_and_no_longer,
            asking_does_not_make_it_stay,
            what_does_not_fit_goes_early_and_is_counted,
            a_live_claim_is_never_evicted,
            time_that_goes_back_brings_nothing_back,
            scopes_have_ids_of_their_own,
            a_closed_window_says_so,
        }
    };
    ($open:path; $($promise:ident,)*) => {
        $(
            #[tokio::test]
            async fn $promise() {
                $crate::window::$promise($open).await;
            }
        )*
    };
}

const SECOND: Duration = Duration::from_secs(1);

/// A time of day.
#[must_use]
pub const fn start() -> Moment {
    Moment::from_nanos(1_790_000_000_000_000_000)
}

/// Bounds that are reached quickly: ids for a minute, claims for ten seconds.
#[must_use]
pub const fn small(count: usize) -> WindowSettings {
    WindowSettings { time: Duration::from_secs(60), count, claim: Duration::from_secs(10) }
}

/// The mark of a number.
#[must_use]
pub fn id(n: usize) -> IdMark {
    IdMark::of("orders", n.to_string().as_bytes())
}

/// Claims an id that must be free.
pub fn first(window: &DedupeWindow, mark: IdMark, now: Moment) -> ClaimTicket {
    match window.claim(mark, now) {
        Ok(ClaimResult::First(ticket)) => ticket,
        other => panic!("another caller has it: {other:?}"),
    }
}

/// Claims and commits.
pub async fn mark(window: &DedupeWindow, mark: IdMark, now: Moment) {
    window.commit(first(window, mark, now), now).wait().await.unwrap();
}

fn is_seen(window: &DedupeWindow, mark: IdMark, now: Moment) -> bool {
    matches!(window.claim(mark, now), Ok(ClaimResult::Seen { .. }))
}

fn is_busy(window: &DedupeWindow, mark: IdMark, now: Moment) -> bool {
    matches!(window.claim(mark, now), Ok(ClaimResult::Busy { .. }))
}

/// One caller gets the claim; the next gets `Busy`, and later `Seen`.
pub async fn the_first_is_the_first_and_the_second_hears_so<T>(open: Open<T>) {
    let (window, _kept) = open(small(10));
    let ticket = first(&window, id(1), start());
    assert_eq!(ticket.until(), start() + 10 * SECOND);
    assert!(is_busy(&window, id(1), start() + SECOND));
    window.commit(ticket, start() + 2 * SECOND).wait().await.unwrap();
    let seen = window.claim(id(1), start() + 3 * SECOND).unwrap();
    assert_eq!(seen, ClaimResult::Seen { since: start() + 2 * SECOND });
    let figures = window.figures(start() + 3 * SECOND);
    let counted = (figures.first, figures.busy, figures.committed, figures.seen, figures.ids, figures.claims);
    assert_eq!(counted, (1, 1, 1, 1, 1, 0));
}

/// Two callers at once: a check and a mark in two steps would let both in.
pub async fn two_at_once_get_one_claim<T>(open: Open<T>) {
    let (window, _kept) = open(small(1_000));
    let (window, gate) = (Arc::new(window), Arc::new(Barrier::new(4)));
    let threads = (0..4).map(|_| {
        let (window, gate) = (Arc::clone(&window), Arc::clone(&gate));
        std::thread::spawn(move || {
            gate.wait();
            let claims = (0..500).map(|n| window.claim(id(n), start()).unwrap());
            claims.filter(|claimed| matches!(claimed, ClaimResult::First(_))).count()
        })
    });
    let threads: Vec<_> = threads.collect();
    let firsts: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert_eq!(firsts, 500);
}

/// Commits that share one write are all written.
pub async fn what_was_committed_at_once_is_all_seen<T>(open: Open<T>) {
    let (window, _kept) = open(small(1_000));
    let tickets: Vec<_> = (0..500).map(|n| first(&window, id(n), start())).collect();
    let committing: Vec<_> = tickets.iter().map(|ticket| window.commit(*ticket, start())).collect();
    for commit in committing {
        commit.wait().await.unwrap();
    }
    assert!((0..500).all(|n| is_seen(&window, id(n), start())));
}

/// Its holder died between the effect and the commit, or before the effect. The outcome is unknown, so it may
/// run again, and is never lost.
pub async fn an_abandoned_claim_runs_out<T>(open: Open<T>) {
    let (window, _kept) = open(small(10));
    let _abandoned = first(&window, id(1), start());
    assert!(is_busy(&window, id(1), start() + (10 * SECOND - Duration::from_nanos(1))));
    let again = first(&window, id(1), start() + 10 * SECOND);
    assert_eq!(window.figures(start() + 10 * SECOND).abandoned, 1);
    window.commit(again, start() + 11 * SECOND).wait().await.unwrap();
    assert!(is_seen(&window, id(1), start() + 11 * SECOND));
}

/// The effect did not happen, so the next caller need not wait.
pub async fn a_released_claim_is_free_at_once<T>(open: Open<T>) {
    let (window, _kept) = open(small(10));
    let ticket = first(&window, id(1), start());
    assert!(window.release(ticket));
    assert!(!window.release(ticket), "it is given back once");
    let again = first(&window, id(1), start());
    window.commit(again, start()).wait().await.unwrap();
    assert!(is_seen(&window, id(1), start()));
}

/// The effect happened: forgetting it because it took long would certainly repeat it.
pub async fn a_late_commit_counts_where_nobody_took_the_id<T>(open: Open<T>) {
    let (window, _kept) = open(small(10));
    let ticket = first(&window, id(1), start());
    let late = start() + 30 * SECOND;
    // Whether its claim is still there or was removed makes no difference.
    assert_eq!(window.figures(late).claims, 0);
    window.commit(ticket, late).wait().await.unwrap();
    assert!(is_seen(&window, id(1), late));
}

/// The claim expired and another caller has the id: the slow caller learns so, and takes nothing from the
/// other.
pub async fn a_late_commit_is_refused_where_somebody_has_the_id<T>(open: Open<T>) {
    let (window, _kept) = open(small(10));
    let slow = first(&window, id(1), start());
    let later = start() + 10 * SECOND;
    let other = first(&window, id(1), later);
    let refused = window.commit(slow, later).wait().await;
    assert!(
        matches!(refused, Err(WindowCommitError::Taken { until }) if until == other.until()),
        "{refused:?}"
    );
    assert!(is_busy(&window, id(1), later), "the other one still has it");
    window.commit(other, later).wait().await.unwrap();
    assert!(is_seen(&window, id(1), later));
    assert_eq!(window.figures(later).late, 1);
}

/// The claim expired and another caller committed the id: the slow caller learns of the repetition.
pub async fn a_late_commit_hears_of_somebody_elses<T>(open: Open<T>) {
    let (window, _kept) = open(small(10));
    let slow = first(&window, id(1), start());
    let later = start() + 10 * SECOND;
    mark(&window, id(1), later).await;
    let refused = window.commit(slow, later + SECOND).wait().await;
    assert!(matches!(refused, Err(WindowCommitError::Already { since }) if since == later), "{refused:?}");
}

/// A caller that releases a claim it no longer holds changes nothing.
pub async fn a_late_release_takes_nothing_from_the_next<T>(open: Open<T>) {
    let (window, _kept) = open(small(10));
    let slow = first(&window, id(1), start());
    let later = start() + 10 * SECOND;
    let _other = first(&window, id(1), later);
    assert!(!window.release(slow));
    assert!(is_busy(&window, id(1), later));
}

/// To the nanosecond, from its commit on.
pub async fn an_id_is_remembered_for_its_time_and_no_longer<T>(open: Open<T>) {
    let (window, _kept) = open(small(10));
    mark(&window, id(1), start()).await;
    assert!(is_seen(&window, id(1), start() + (60 * SECOND - Duration::from_nanos(1))));
    mark(&window, id(1), start() + 60 * SECOND).await;
    let figures = window.figures(start() + 60 * SECOND);
    assert_eq!((figures.ids, figures.expired, figures.evicted_early), (1, 1, 0));
}

/// A sender that repeats itself for ever does not fill the window.
pub async fn asking_does_not_make_it_stay<T>(open: Open<T>) {
    let (window, _kept) = open(small(10));
    mark(&window, id(1), start()).await;
    assert!((0..60).all(|n| is_seen(&window, id(1), start() + n * SECOND)));
    first(&window, id(1), start() + 60 * SECOND);
}

/// The oldest first, with how long the shortest of them was remembered.
pub async fn what_does_not_fit_goes_early_and_is_counted<T>(open: Open<T>) {
    let (window, _kept) = open(small(3));
    for n in 0..5 {
        mark(&window, id(n), start() + u32::try_from(n).unwrap() * SECOND).await;
    }
    let now = start() + 5 * SECOND;
    let figures = window.figures(now);
    // Each made room when it was claimed: the first at three seconds' age, the second too.
    assert_eq!((figures.ids, figures.evicted_early), (3, 2));
    assert_eq!(figures.youngest_evicted, Some(3 * SECOND));
    assert!((2..5).all(|n| is_seen(&window, id(n), now)));
    first(&window, id(0), now);
}

/// If the window holds only claims, the next one is refused for now.
pub async fn a_live_claim_is_never_evicted<T>(open: Open<T>) {
    let (window, _kept) = open(small(3));
    let tickets: Vec<_> = (0..3).map(|n| first(&window, id(n), start())).collect();
    let full = window.claim(id(3), start());
    assert!(
        matches!(&full, Err(error @ WindowClaimError::Full(full)) if full.claims == 3 && error.is_transient()),
        "{full:?}"
    );
    window.release(tickets[0]);
    let fourth = first(&window, id(3), start());
    assert!((1..=3).all(|n| is_busy(&window, id(n), start())));
    // Expired claims make room for new ones.
    first(&window, id(4), start() + 10 * SECOND);
    window.commit(fourth, start() + 10 * SECOND).wait().await.unwrap();
    assert!(is_seen(&window, id(3), start() + 10 * SECOND));
}

/// The window's time stands still instead.
pub async fn time_that_goes_back_brings_nothing_back<T>(open: Open<T>) {
    let (window, _kept) = open(small(10));
    mark(&window, id(1), start() + 100 * SECOND).await;
    mark(&window, id(2), start()).await;
    assert!(is_seen(&window, id(1), start()) && is_seen(&window, id(2), start()));
    // Time stands still until it has caught up, so both are remembered for their whole time from then.
    assert!(is_seen(&window, id(2), start() + 159 * SECOND));
    first(&window, id(2), start() + 160 * SECOND);
    first(&window, id(1), start() + 30 * SECOND);
    assert!(is_busy(&window, id(2), start()), "and no claim runs out by it");
}

/// `charge/17` and `refund/17` are different ids.
pub async fn scopes_have_ids_of_their_own<T>(open: Open<T>) {
    let (window, _kept) = open(small(10));
    mark(&window, IdMark::of("charge", b"17"), start()).await;
    mark(&window, IdMark::of("refund", b"17"), start()).await;
    assert_eq!(window.figures(start()).ids, 2);
}

/// To claims and commits alike.
pub async fn a_closed_window_says_so<T>(open: Open<T>) {
    let (window, _kept) = open(small(10));
    let ticket = first(&window, id(1), start());
    window.close().await;
    let claimed = window.claim(id(2), start());
    assert!(
        matches!(claimed, Err(WindowClaimError::Store(redrive_store::StoreError::Closed))),
        "{claimed:?}"
    );
    let committed = window.commit(ticket, start()).wait().await;
    assert!(
        matches!(committed, Err(WindowCommitError::Store(redrive_store::StoreError::Closed))),
        "{committed:?}"
    );
}
