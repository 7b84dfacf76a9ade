//! Redrive's side of the comparisons: what a policy would wait, and how to make threads meet.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, LazyLock};
use std::time::{Duration, Instant};

use redrive_core::{Fault, Policy, PolicyBuilder, Report};
use redrive_retry::blocking::Retry;
use tokio::runtime::{Builder, EnterGuard, Runtime};

/// A policy without a budget, for tests that are about something else.
pub(crate) fn policy(attempts: u32) -> PolicyBuilder {
    Policy::builder().attempts(attempts).no_budget()
}

/// The waits between the attempts of one call that always fails in the same way, and the stop reason. Time is
/// virtual.
pub(crate) fn waits(policy: &Policy, fault: Fault) -> (Vec<Duration>, Report) {
    let _still = still();
    let mut waits = Vec::new();
    let failing = || Err::<(), _>("down");
    let stopped = failing
        .retry(policy)
        .classify(|_: &&str| fault)
        .wait_with(|wait| {
            waits.push(wait);
            true
        })
        .call()
        .unwrap_err();
    (waits, stopped.report)
}

/// Makes time stand still on this thread for as long as the guard lives, so that waits are seen to the
/// nanosecond.
pub(crate) fn still() -> EnterGuard<'static> {
    // Paused and never driven, so its clock stands still.
    static STILL: LazyLock<Runtime> =
        LazyLock::new(|| Builder::new_current_thread().enable_time().start_paused(true).build().unwrap());
    STILL.enter()
}

/// Whether a race shows within half a minute; it is a matter of milliseconds on an idle machine. What two
/// threads do at the same moment is up to the machine, and where it has one core they do nothing at the same
/// moment: then nothing is asked.
pub(crate) fn shows(race: impl Fn() -> bool) -> bool {
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() == 1) {
        return true;
    }
    let start = Instant::now();
    std::iter::repeat_with(race).take_while(|_| start.elapsed() < Duration::from_secs(30)).any(|seen| seen)
}

/// Sends `threads` threads through `doors` doors side by side, and counts how many each door let in.
pub(crate) fn crowd(threads: usize, doors: usize, enter: impl Fn(usize) -> bool + Sync) -> Vec<usize> {
    let entered: Vec<_> = (0..doors).map(|_| AtomicUsize::new(0)).collect();
    let together = Barrier::new(threads);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                for (door, entered) in entered.iter().enumerate() {
                    // A barrier wakes its threads one after the other, so they meet somewhere in the doors
                    // that follow.
                    if door % 16 == 0 {
                        together.wait();
                    }
                    if enter(door) {
                        entered.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
    });
    entered.into_iter().map(AtomicUsize::into_inner).collect()
}
