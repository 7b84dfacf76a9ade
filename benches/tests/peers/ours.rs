//! Redrive's side of the comparisons: what a policy would wait, and how to make threads meet.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redrive_core::{Fault, Policy, PolicyBuilder, Report};
use redrive_retry::blocking::Retry;
use tokio::runtime::{Builder, EnterGuard, Runtime};

/// A policy without a budget, for tests that are about something else.
pub(crate) fn policy(attempts: u32) -> PolicyBuilder {
    Policy::builder().attempts(attempts).no_budget()
}

/// The waits between the attempts of one call that fails each time in the same way, and why it stopped. Nobody sleeps.
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

/// Makes time stand still on this thread for as long as the guard lives, so that waits are seen to the nanosecond.
pub(crate) fn still() -> EnterGuard<'static> {
    // Paused, and nobody runs it, so its clock never goes on.
    static STILL: LazyLock<Runtime> =
        LazyLock::new(|| Builder::new_current_thread().enable_time().start_paused(true).build().unwrap());
    STILL.enter()
}

/// Whether a race shows in one of several tries. What two threads do at the same moment is up to the machine; where it has one
/// core they do nothing at the same moment, and nothing is asked.
pub(crate) fn shows(race: impl Fn() -> bool) -> bool {
    let one_core = std::thread::available_parallelism().is_ok_and(|cores| cores.get() == 1);
    one_core || (0..20).any(|_| race())
}

/// Sends `threads` threads through `doors` doors, all to one door at the same time, and counts how many each door let in.
pub(crate) fn crowd(threads: usize, doors: usize, enter: impl Fn(usize) -> bool + Sync) -> Vec<usize> {
    let entered: Vec<_> = (0..doors).map(|_| AtomicUsize::new(0)).collect();
    let arrived = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                for (door, entered) in entered.iter().enumerate() {
                    arrived.fetch_add(1, Ordering::SeqCst);
                    // A barrier wakes its threads one by one; whoever spins, goes at once. Fewer cores than threads: yield.
                    while arrived.load(Ordering::SeqCst) < threads * (door + 1) {
                        std::thread::yield_now();
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
